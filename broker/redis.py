"""The store: one URL → commands, scripts, pipelines and links, each with a deadline and without hidden retries.

A request has ``settings.request_deadline`` seconds in total: for a free connection, for connecting, for the answer.
It is done at most once; whether to send it again is the caller's to know. A request that is cancelled or late closes
its connection, so replies never reach the wrong request.

What lies under the URL is a route's to know: one server (``routes``), a Cluster (``cluster``), or the master that
Sentinels name (``sentinel``). All keys of a script, and of an atomic pipeline, lie in one slot; a plain pipeline may
be of many, and is in order within each.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import MovedError, NoScriptError, RedisError, ResponseError

from broker import metrics
from broker.cluster import Cluster
from broker.connections import Arg, StoreConnection, make, pack, reply_text
from broker.embedded import Attachment, attach
from broker.errors import LayoutMismatch, StoreError, StoreUnavailable
from broker.keys import Keys
from broker.node import Node, Request
from broker.replies import Moving, Refused, error_of
from broker.routes import OneServer, Route
from broker.scripts import Script
from broker.sentinel import Sentinels
from broker.settings import Settings
from broker.slots import slot_of
from broker.urls import Target, parse

__all__ = ["Link", "Moving", "Refused", "Stats", "Store"]

_COUNTED = {result: metrics.STORE_REQUESTS.labels(result) for result in ("answered", "away", "refused")}
"""Made at once: of a series that begins with its first outage Prometheus sees no increase."""


class Stats(NamedTuple):
    """A moment of a store, for metrics. ``connections`` = idle + in use; ``links`` are on top of them."""

    connections: int
    in_use: int
    waiting: int
    links: int
    interruptions: int
    servers: int = 1
    """That are spoken to."""


class Store:
    """Redis, Valkey or a stand-in for it, on one server or several. Safe for any number of tasks of one event loop."""

    def __init__(self, url: str, settings: Settings, target: Target, attachment: Attachment | None = None) -> None:
        self.url = url
        self.settings = settings
        self.keys = Keys(settings.namespace, settings.partitions)
        self.shown = target.shown
        """The URL without its secrets."""
        self._target = target
        self._deadline = settings.request_deadline
        self._attachment = attachment
        self._interruptions = 0
        self._closed = False
        self._route = self._routed(target)
        self._links: set[Link] = set()
        self._secret: bytes | None = None

    @classmethod
    async def connect(cls, url: str, settings: Settings) -> Store:
        """Connect, and agree on the number of partitions with whoever was here before.

        ``InvalidRequest`` (the URL), ``StoreUnavailable`` (away), ``LayoutMismatch``, ``StoreError`` (refused: a
        password, a data directory). ``embedded:`` may take longer than the deadline: it starts a server.
        """
        target = parse(url, settings.data_dir)
        attachment = await attach(target.path) if target.kind == "embedded" else None
        store = cls(url, settings, target, attachment)
        try:
            await store._route.start(store._until())
            await store._agree_on_layout()
        except BaseException:
            await store.aclose()
            raise
        return store

    async def _agree_on_layout(self) -> None:
        key, ours = self.keys.layout(), str(self.keys.partitions).encode()
        _, theirs = await self.pipeline([(b"SET", key, ours, b"NX"), (b"GET", key)])
        if theirs != ours:
            there = (theirs or b"?").decode(errors="replace")
            raise LayoutMismatch(
                f"namespace {self.settings.namespace!r} at {self.shown} is laid out with {there} partitions, this "
                f"process is configured with {ours.decode()}: set RUNCAST_PARTITIONS alike, or take another namespace"
            )

    def _routed(self, target: Target) -> Route:
        if target.kind == "cluster":
            return Cluster(target, self.keys.layout(), self._interrupted, self._rerouted)
        if target.kind == "sentinel":
            return Sentinels(target, self._interrupted, self._rerouted)
        return OneServer(target, self._make, self._interrupted, self._open)

    # requests

    async def call(self, *args: Arg) -> Any:
        """One command; its reply as RESP2 has it, strings as bytes.

        ``StoreUnavailable``: not done, or nobody knows whether it was. ``Refused``: any other error reply.
        """
        ((reply,),) = await self._request([Request.of(args)], self._until())
        return self._checked(reply)

    async def pipeline(self, commands: Sequence[Sequence[Arg]], *, atomic: bool = False) -> list[Any]:
        """Commands in one round trip, in order; ``atomic``: as one transaction, of one slot. The first error reply is
        raised, after all commands have run (with ``atomic``: none has, where the error is in a command's form)."""
        if not commands:
            return []
        if not atomic:
            requests = [Request.of(command) for command in commands]
            replies = [reply for (reply,) in await self._request(requests, self._until())]
        else:
            request = Request.of((b"MULTI",), *commands, (b"EXEC",))
            ((*queued, done),) = await self._request([request], self._until())
            for reply in queued:
                self._checked(reply)
            replies = self._checked(done)
        for reply in replies:
            self._checked(reply)
        return replies

    async def script(self, script: Script, keys: Sequence[bytes], args: Sequence[Arg]) -> Any:
        """Run a script by its digest; where the server does not know it (nothing has run then), by its source."""
        until = self._until()
        rest = (len(keys), *keys, *args)
        ((reply,),) = await self._request([Request.of((b"EVALSHA", script.sha, *rest))], until)
        if isinstance(reply, NoScriptError):
            ((reply,),) = await self._request([Request.of((b"EVAL", script.source, *rest))], until)
        return self._checked(reply)

    async def _request(self, requests: Sequence[Request], until: float) -> list[list[Any]]:
        began = time.perf_counter()
        try:
            replies = await self._route.request(requests, until)
        except StoreUnavailable:
            _COUNTED["away"].inc()
            raise
        except StoreError:
            _COUNTED["refused"].inc()
            raise
        _COUNTED["answered"].inc()
        metrics.STORE_SECONDS.observe(time.perf_counter() - began)
        return replies

    async def everywhere(self, *args: Arg) -> list[tuple[str, Any]]:
        """One command without a key at each server that has keys: → (its name, its reply). Raises as ``call``."""
        until, told = self._until(), []
        for node in self._route.servers():
            (reply,) = await node.exchange(pack(args), 1, until)
            told.append((node.shown, self._checked(reply)))
        return told

    def slot(self, key: bytes) -> int | None:
        """What keys must share for one command, or one link, to read them together; ``None``: nothing."""
        return slot_of(key) if self._route.sharded else None

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline

    def _checked(self, reply: Any) -> Any:
        if isinstance(reply, ResponseError):
            raise self._counted(error_of(reply, self.shown, ""))
        return reply

    def _counted(self, error: StoreUnavailable | StoreError) -> StoreUnavailable | StoreError:
        if isinstance(error, StoreUnavailable):
            self._interrupted()
        return error

    def _interrupted(self) -> None:
        self._interruptions += 1
        metrics.STORE_INTERRUPTIONS.inc()

    @property
    def interruptions(self) -> int:
        """Grows whenever the store was seen to be away: a lost connection, a deadline, LOADING, READONLY, …"""
        return self._interruptions + sum([node.pool.dead for node in self._route.nodes])

    def _rerouted(self) -> None:
        """Some keys lie on another server by now: links to the old one would wait for nothing."""
        self._interrupted()
        for link in list(self._links):
            if not self._route.still(link.node, link.near):
                link.leave("what it reads is on another server by now")

    # connections

    def _make(self) -> StoreConnection:
        return make(self._target, self._attachment.address if self._attachment else self._target.path)

    async def _open(self, connection: StoreConnection) -> None:
        try:
            await connection.open()
        except Disconnected as error:
            if self._attachment is None or reply_text(error) is not None:
                raise
            # Its server is gone (killed): whoever notices first starts it anew.
            await self._attachment.ensure()
            await connection.open()

    async def link(self, near: bytes | None = None) -> Link:
        """A connection of its own, for blocking reads of ``near`` and of what shares its slot.

        ``StoreUnavailable``, ``Refused``.
        """
        self._refuse_closed()
        until = self._until()
        node = await self._route.node_for(near, until)
        try:
            connection = await node.connect(until)
        except StoreUnavailable:
            self._route.doubt(node)
            raise
        link = Link(connection, self, node, near)
        if self._closed or not self._route.still(node, near):
            await link.aclose()
            self._refuse_closed()
            raise StoreUnavailable(f"{node.shown}: it has not got {near!r} any more")
        self._links.add(link)
        return link

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    # the rest

    async def secret(self) -> bytes:
        """The deployment's secret: ``settings.secret``, else made at first use and kept in Redis."""
        if self.settings.secret is not None:
            return self.settings.secret.get_secret_value().encode()
        if self._secret is None:
            key = self.keys.secret()
            made = secrets.token_hex(32).encode()
            _, self._secret = await self.pipeline([(b"SET", key, made, b"NX"), (b"GET", key)])
        assert self._secret is not None
        return self._secret

    @property
    def stats(self) -> Stats:
        pools = [node.pool for node in self._route.nodes]
        return Stats(
            sum([pool.size for pool in pools]),
            sum([pool.in_use for pool in pools]),
            sum([pool.waiting for pool in pools]),
            len(self._links),
            self.interruptions,
            len(pools),
        )

    async def aclose(self) -> None:
        """Close everything; requests under way fail with ``StoreUnavailable``. May be repeated."""
        self._closed = True
        for link in list(self._links):
            await link.aclose()
        await self._route.aclose()
        if self._attachment is not None:
            self._attachment.close()
            self._attachment = None


class Link:
    """A dedicated connection for blocking reads: one request at a time, no retry, no reconnect, no redirect.

    Whatever goes wrong (time-out, close, cancellation, an answer such as LOADING or MOVED) closes it; the caller opens
    another. ``Moving`` alone does not.
    """

    def __init__(self, connection: StoreConnection, store: Store, node: Node, near: bytes | None) -> None:
        self._connection = connection
        self._store = store
        self.node, self.near = node, near
        self._closed = ""
        """Why it is."""

    async def call(self, *args: Arg, deadline: float) -> Any:
        """One command and its reply, within ``deadline`` seconds from now. Raises as ``read`` does."""
        until = asyncio.get_running_loop().time() + deadline
        await self._send((pack(args),), until)
        return await self._read(until)

    async def send(self, packed: Sequence[bytes]) -> None:
        """Write a request that is RESP already. A link that is closed, or cannot take it, says so at ``read``."""
        await self._send(packed, self._store._until())

    async def read(self, deadline: float) -> Any:
        """The next reply, within ``deadline`` seconds from now.

        ``Moving``: its keys lie on two nodes for a while; the link stays open. ``StoreUnavailable``: late, closed,
        LOADING, READONLY, MOVED …: the link is closed. ``Refused``: any other error reply; the link stays open.
        """
        return await self._read(asyncio.get_running_loop().time() + deadline)

    async def _send(self, packed: Sequence[bytes], until: float) -> None:
        if not self._closed:
            with contextlib.suppress(StoreUnavailable):
                await self._within(until, self._connection.send_packed_command(packed, check_health=False))

    async def _read(self, until: float) -> Any:
        if self._closed:
            raise StoreUnavailable(f"{self.node.shown}: {self._closed}")
        return await self._within(until, self._connection.read_response(disable_decoding=True))

    async def _within(self, until: float, step: Coroutine[Any, Any, Any]) -> Any:
        what, moved = "no answer in time", None
        try:
            async with asyncio.timeout_at(until):
                return await step
        except TimeoutError:
            error: StoreUnavailable | StoreError = StoreUnavailable(f"{self.node.shown}: {what}")
        except RedisError as reason:
            what = self._closed or "the connection was lost"
            error = self._error_of(reason, what)
            moved = reason if isinstance(reason, MovedError) else None
        except BaseException:
            await self._drop("a request was cancelled")
            raise
        if isinstance(error, Moving):
            raise error
        if isinstance(error, StoreUnavailable) or not self._connection.is_connected:
            if not self._closed:
                self._store._interrupted()
                self._store._route.doubt(self.node, self.near, moved)
            await self._drop(what)
        raise error

    def _error_of(self, reason: RedisError, what: str) -> StoreUnavailable | StoreError:
        if isinstance(reason, MovedError) and self._store._route.sharded:
            return StoreUnavailable(f"{self.node.shown}: what it reads is on another node now: MOVED {reason}")
        return error_of(reason, self.node.shown, what)

    def leave(self, why: str) -> None:
        """Close it in this step, whatever it waits for."""
        self._closed = self._closed or why
        self._store._links.discard(self)
        self._connection.abort()

    async def _drop(self, why: str) -> None:
        self._closed = self._closed or why
        self._store._links.discard(self)
        await self._connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close it at once; a read under way gets ``StoreUnavailable``. May be repeated."""
        self._closed = self._closed or "the link was closed"
        self._store._links.discard(self)
        await self._connection.disconnect()
