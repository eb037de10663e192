"""The store: one URL → commands, scripts, pipelines and links, each with a deadline and without hidden retries.

A request has ``settings.request_deadline`` seconds in total: for a free connection, for connecting, for the answer.
It is sent at most once; whether to send it again is the caller's to know. A request that is cancelled or late closes
its connection, so replies never reach the wrong request.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import InvalidResponse, NoScriptError, RedisError, ResponseError

from broker import metrics
from broker.connections import Arg, Pool, StoreConnection, exchange, make, pack, reply_text
from broker.embedded import Attachment, attach
from broker.errors import LayoutMismatch, StoreError, StoreUnavailable
from broker.keys import Keys
from broker.scripts import Script
from broker.settings import Settings
from broker.urls import Target, parse

__all__ = ["Link", "Refused", "Stats", "Store"]

_COUNTED = {result: metrics.STORE_REQUESTS.labels(result) for result in ("answered", "away", "refused")}
"""Made at once: of a series that begins with its first outage Prometheus sees no increase."""
_AWAY = {"LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED"}
_NOT_NOW = frozenset(_AWAY | {"NOREPLICAS", "MISCONF", "OOM", "BUSY"})
"""Replies that say: later, or elsewhere. The connection is closed, so that the next one is made anew (a promoted
replica is found through its name)."""


class Refused(StoreError):
    """Redis answered with an error: ``reply`` is its text, ``kind`` the first word of it (``NOGROUP``, ``ERR`` …)."""

    def __init__(self, reply: str, shown: str) -> None:
        super().__init__(f"{shown} refused a command: {reply}")
        self.reply = reply
        self.kind = reply.partition(" ")[0]


class Stats(NamedTuple):
    """A moment of a store, for metrics. ``connections`` = idle + in use; ``links`` are on top of them."""

    connections: int
    in_use: int
    waiting: int
    links: int
    interruptions: int


def _not_now(reply: str) -> bool:
    return reply.partition(" ")[0] in _NOT_NOW or reply == "ERR max number of clients reached"


def _error_of(error: RedisError, shown: str, what: str) -> StoreUnavailable | StoreError:
    """``what`` says what the error means where it is none of the server's."""
    reply = reply_text(error)
    if reply is None:
        if isinstance(error, InvalidResponse):
            what, error = "what answers there does not speak the protocol of Redis", RedisError("its reply is no RESP")
        return StoreUnavailable(f"{shown}: {what} ({error})")
    if _not_now(reply):
        return StoreUnavailable(f"{shown} cannot serve now: {reply}")
    return Refused(reply, shown)


class Store:
    """One Redis, Valkey or stand-in for it. Safe for any number of tasks of one event loop."""

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
        self._pool = Pool(self._make, self._connect, self._interrupted)
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

    # requests

    async def call(self, *args: Arg) -> Any:
        """One command; its reply as RESP2 has it, strings as bytes.

        ``StoreUnavailable``: not done, or nobody knows whether it was. ``Refused``: any other error reply.
        """
        (reply,) = await self._request(pack(args), 1, self._until())
        return self._checked(reply)

    async def pipeline(self, commands: Sequence[Sequence[Arg]], *, atomic: bool = False) -> list[Any]:
        """Commands in one round trip, in order; ``atomic``: as one transaction. The first error reply is raised,
        after all commands have run (with ``atomic``: none has, where the error is in a command's form)."""
        if not commands:
            return []
        packed = [pack(command) for command in commands]
        if not atomic:
            replies = await self._request(b"".join(packed), len(packed), self._until())
        else:
            packed = [pack((b"MULTI",)), *packed, pack((b"EXEC",))]
            *queued, done = await self._request(b"".join(packed), len(packed), self._until())
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
        (reply,) = await self._request(pack((b"EVALSHA", script.sha, *rest)), 1, until)
        if isinstance(reply, NoScriptError):
            (reply,) = await self._request(pack((b"EVAL", script.source, *rest)), 1, until)
        return self._checked(reply)

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline

    async def _request(self, packed: bytes, count: int, until: float) -> list[Any]:
        began = time.perf_counter()
        try:
            replies = await self._sent(packed, count, until)
        except StoreUnavailable:
            _COUNTED["away"].inc()
            raise
        except StoreError:
            _COUNTED["refused"].inc()
            raise
        _COUNTED["answered"].inc()
        metrics.STORE_SECONDS.observe(time.perf_counter() - began)
        return replies

    async def _sent(self, packed: bytes, count: int, until: float) -> list[Any]:
        try:
            async with asyncio.timeout_at(until):
                connection = await self._pool.take()
                try:
                    replies = await exchange(connection, packed, count)
                    for reply in replies:
                        if isinstance(reply, ResponseError) and _not_now(reply_text(reply) or ""):
                            await connection.disconnect(nowait=True)
                finally:
                    await self._pool.give_back(connection)
        except TimeoutError:
            raise self._counted(StoreUnavailable(f"{self.shown}: no answer in time")) from None
        except RedisError as error:
            raise self._counted(_error_of(error, self.shown, "the connection was lost")) from None
        except StoreUnavailable:
            self._interrupted()
            raise
        return replies

    def _checked(self, reply: Any) -> Any:
        if isinstance(reply, ResponseError):
            raise self._counted(_error_of(reply, self.shown, ""))
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
        return self._interruptions + self._pool.dead

    # connections

    def _make(self) -> StoreConnection:
        return make(self._target, self._attachment.address if self._attachment else self._target.path)

    async def _connect(self, connection: StoreConnection) -> None:
        """``StoreUnavailable`` or ``Refused``. No time limit."""
        try:
            await self._connect_or_start(connection)
        except RedisError as error:
            raise _error_of(error, self.shown, "no connection") from None

    async def _connect_or_start(self, connection: StoreConnection) -> None:
        try:
            await connection.open()
        except Disconnected as error:
            if self._attachment is None or reply_text(error) is not None:
                raise
            # Its server is gone (killed): whoever notices first starts it anew.
            await self._attachment.ensure()
            await connection.open()

    async def link(self) -> Link:
        """A connection of its own, for blocking reads. ``StoreUnavailable``, ``Refused``."""
        try:
            self._pool.refuse_closed()
            async with asyncio.timeout_at(self._until()):
                connection = self._make()
                await self._connect(connection)
            link = Link(connection, self)
            if self._pool.closed:
                await link.aclose()
            self._pool.refuse_closed()
        except TimeoutError:
            raise self._counted(StoreUnavailable(f"{self.shown}: no connection in time")) from None
        except StoreUnavailable:
            self._interrupted()
            raise
        self._links.add(link)
        return link

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
        pool = self._pool
        return Stats(pool.size, pool.in_use, pool.waiting, len(self._links), self.interruptions)

    async def aclose(self) -> None:
        """Close everything; requests under way fail with ``StoreUnavailable``. May be repeated."""
        for link in list(self._links):
            await link.aclose()
        await self._pool.aclose()
        if self._attachment is not None:
            self._attachment.close()
            self._attachment = None


class Link:
    """A dedicated connection for blocking reads: one request at a time, no retry, no reconnect.

    Whatever goes wrong (time-out, close, cancellation, an answer such as LOADING) closes it; the caller opens another.
    """

    def __init__(self, connection: StoreConnection, store: Store) -> None:
        self._connection = connection
        self._store = store
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

        ``StoreUnavailable``: late, closed, LOADING, READONLY …: the link is closed. ``Refused``: any other error
        reply; the link stays open.
        """
        return await self._read(asyncio.get_running_loop().time() + deadline)

    async def _send(self, packed: Sequence[bytes], until: float) -> None:
        if not self._closed:
            with contextlib.suppress(StoreUnavailable):
                await self._within(until, self._connection.send_packed_command(packed, check_health=False))

    async def _read(self, until: float) -> Any:
        if self._closed:
            raise StoreUnavailable(f"{self._store.shown}: {self._closed}")
        return await self._within(until, self._connection.read_response(disable_decoding=True))

    async def _within(self, until: float, step: Coroutine[Any, Any, Any]) -> Any:
        what = "no answer in time"
        try:
            async with asyncio.timeout_at(until):
                return await step
        except TimeoutError:
            error: StoreUnavailable | StoreError = StoreUnavailable(f"{self._store.shown}: {what}")
        except RedisError as reason:
            what = self._closed or "the connection was lost"
            error = _error_of(reason, self._store.shown, what)
        except BaseException:
            await self._drop("a request was cancelled")
            raise
        if isinstance(error, StoreUnavailable) or not self._connection.is_connected:
            if not self._closed:
                self._store._interrupted()
            await self._drop(what)
        raise error

    async def _drop(self, why: str) -> None:
        self._closed = self._closed or why
        self._store._links.discard(self)
        await self._connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close it at once; a read under way gets ``StoreUnavailable``. May be repeated."""
        self._closed = self._closed or "the link was closed"
        self._store._links.discard(self)
        await self._connection.disconnect()
