"""The store: one URL → commands, scripts, pipelines and links, each with a deadline and without hidden retries.

A request has ``settings.request_deadline`` seconds in total: for a free connection, for connecting, for the answer.
It is sent at most once; whether to send it again is the caller's to know. A request that is cancelled or late closes
its connection, so replies never reach the wrong request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.embedded import Attachment, attach
from broker.errors import LayoutMismatch, StoreError, StoreUnavailable
from broker.keys import Keys
from broker.memory import open_memory
from broker.pool import Pool
from broker.scripts import Script
from broker.settings import Settings
from broker.urls import Target, parse
from broker.wire import Arg, ReplyError, Wire, open_socket, pack

__all__ = ["Link", "Refused", "Stats", "Store"]

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


def _not_now(reply: ReplyError) -> bool:
    return reply.code in _NOT_NOW or reply.text == "ERR max number of clients reached"


def _error_of(reply: ReplyError, shown: str) -> StoreUnavailable | StoreError:
    if _not_now(reply):
        return StoreUnavailable(f"{shown} cannot serve now: {reply.text}")
    return Refused(reply.text, shown)


class Store:
    """One Redis, Valkey or stand-in for it. Safe for any number of tasks of one event loop."""

    def __init__(self, url: str, settings: Settings, target: Target) -> None:
        self.url = url
        self.settings = settings
        self.keys = Keys(settings.namespace, settings.partitions)
        self.interruptions = 0
        """Grows whenever the store was seen to be away: a lost connection, a deadline, LOADING, READONLY, …"""
        self.shown = target.shown
        """The URL without its secrets."""
        self._target = target
        self._deadline = settings.request_deadline
        self._attachment: Attachment | None = None
        self._pool = Pool(self._open, self._interrupted)
        self._links: set[Link] = set()
        self._secret: bytes | None = None

    @classmethod
    async def connect(cls, url: str, settings: Settings) -> Store:
        """Connect, and agree on the number of partitions with whoever was here before.

        ``InvalidRequest`` (the URL), ``StoreUnavailable`` (away), ``LayoutMismatch``, ``StoreError`` (refused: a
        password, a data directory). ``embedded:`` may take longer than the deadline: it starts a server.
        """
        target = parse(url, settings.data_dir)
        store = cls(url, settings, target)
        try:
            if target.kind == "embedded":
                store._attachment = await attach(target.path)
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
        if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
            (reply,) = await self._request(pack((b"EVAL", script.source, *rest)), 1, until)
        return self._checked(reply)

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline

    async def _request(self, packed: bytes, count: int, until: float) -> list[Any]:
        try:
            wire = self._pool.take_idle() or await self._pool.take(until)
        except StoreUnavailable:
            self._interrupted()
            raise
        try:
            wire.send((packed,))
            replies = await wire.read(count, until)
            for reply in replies:
                if type(reply) is ReplyError and _not_now(reply):
                    wire.close()
        except StoreUnavailable:
            self._interrupted()
            raise
        finally:
            self._pool.give_back(wire)
        return replies

    def _checked(self, reply: Any) -> Any:
        if type(reply) is ReplyError:
            error = _error_of(reply, self.shown)
            if isinstance(error, StoreUnavailable):
                self._interrupted()
            raise error
        return reply

    def _interrupted(self) -> None:
        self.interruptions += 1

    # connections

    async def _open(self, until: float) -> Wire:
        """A new connection, introduced. ``StoreUnavailable`` or ``Refused``."""
        try:
            match self._target.kind:
                case "memory":
                    return await open_memory(self._target.path)
                case "embedded":
                    return await self._open_embedded(until)
                case _:
                    return await open_socket(self._target, self._pool.lost, until)
        except TimeoutError:
            raise StoreUnavailable(f"{self.shown}: no connection in time") from None
        except OSError as error:
            raise StoreUnavailable(f"{self.shown}: no connection ({error})") from None
        except ReplyError as reply:
            raise _error_of(reply, self.shown) from None

    async def _open_embedded(self, until: float) -> Wire:
        attachment = self._attachment
        if attachment is None:
            raise StoreUnavailable(f"{self.shown}: the store is closed")
        try:
            return await open_socket(self._target, self._pool.lost, until, path=attachment.address)
        except (FileNotFoundError, ConnectionError):
            # Its server is gone (killed): whoever notices first starts it anew.
            async with asyncio.timeout_at(until):
                await attachment.ensure()
            return await open_socket(self._target, self._pool.lost, until, path=attachment.address)

    async def link(self) -> Link:
        """A connection of its own, for blocking reads. ``StoreUnavailable``, ``Refused``."""
        try:
            self._pool.refuse_closed()
            wire = await self._open(self._until())
        except StoreUnavailable:
            self._interrupted()
            raise
        link = Link(wire, self)
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

    def __init__(self, wire: Wire, store: Store) -> None:
        self._wire = wire
        self._store = store
        self._closed = False

    async def call(self, *args: Arg, deadline: float) -> Any:
        """One command and its reply, within ``deadline`` seconds from now. Raises as ``read`` does."""
        self._wire.send((pack(args),))
        return await self.read(deadline)

    async def send(self, packed: Sequence[bytes]) -> None:
        """Write a request that is RESP already. A closed link says so at ``read``."""
        self._wire.send(packed)

    async def read(self, deadline: float) -> Any:
        """The next reply, within ``deadline`` seconds from now.

        ``StoreUnavailable``: late, closed, LOADING, READONLY …: the link is closed. ``Refused``: any other error
        reply; the link stays open.
        """
        until = asyncio.get_running_loop().time() + deadline
        try:
            (reply,) = await self._wire.read(1, until)
        except StoreUnavailable:
            if not self._closed:
                self._store._interrupted()
                self._drop()
            raise
        except asyncio.CancelledError:
            self._drop()
            raise
        if type(reply) is ReplyError and _not_now(reply):
            self._drop()
        return self._store._checked(reply)

    def _drop(self) -> None:
        self._closed = True
        self._wire.close()
        self._store._links.discard(self)

    async def aclose(self) -> None:
        """Close it at once; a read under way gets ``StoreUnavailable``. May be repeated."""
        self._drop()
        await self._wire.wait_closed()
