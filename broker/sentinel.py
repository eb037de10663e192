"""A master that Sentinels watch over: who it is, and that it is another one now.

A Sentinel is asked for the master whenever the last one was seen to be away, and one tells of a switch by itself: a
master that was cut off from the others may go on answering for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import AskError, RedisError, ResponseError

from broker.connections import StoreConnection, exchange, make, pack
from broker.errors import RuncastError, StoreError, StoreUnavailable
from broker.logs import unbound
from broker.node import Node, Request
from broker.replies import error_of, is_spent
from broker.routes import split
from broker.urls import Address, Target, show

__all__ = ["Sentinels"]

_log = logging.getLogger("runcast.store")

_SWITCHED = b"+switch-master"
_PATIENCE = 0.5
"""Seconds for one Sentinel to answer: another one may know as well."""
_PAUSE = 1.0
_LISTEN = 30.0
"""Seconds after which another connection listens: one that was cut off looks like one that has nothing to tell."""


class Sentinels:
    """``lost`` is called whenever the master was seen to be away, ``changed`` when it is another one."""

    sharded = False

    def __init__(self, target: Target, lost: Callable[[], None], changed: Callable[[], None]) -> None:
        self._target, self._lost, self._changed = target, lost, changed
        self._seeds = list(target.seeds)
        """The one that answered last comes first."""
        self._address: Address | None = None
        self._node: Node | None = None
        self._doubted = True
        self._asking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def nodes(self) -> Sequence[Node]:
        return (self._node,) if self._node is not None else ()

    def servers(self) -> Sequence[Node]:
        return self.nodes

    async def start(self, until: float) -> None:
        await self._master(until)
        self._watching = asyncio.create_task(self._watch(), name="sentinel", context=unbound())

    async def aclose(self) -> None:
        self._closed = True
        tasks = [task for task in (self._watching, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self.nodes:
            await node.aclose()

    async def request(self, requests: Sequence[Request], until: float) -> list[list[Any]]:
        node = await self._master(until)
        packed, count = b"".join([r.packed for r in requests]), sum([r.replies for r in requests])
        try:
            replies = await node.exchange(packed, count, until)
        except RuncastError:
            self.doubt(node)
            raise
        if is_spent(replies):
            self.doubt(node)
        return split(replies, requests)

    async def node_for(self, key: bytes | None, until: float) -> Node:
        return await self._master(until)

    def still(self, node: Node, key: bytes | None) -> bool:
        return node is self._node

    def doubt(self, node: Node, key: bytes | None = None, moved: AskError | None = None) -> None:
        if node is self._node:
            self._doubted = True

    # Who it is.

    async def _master(self, until: float) -> Node:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._doubted or self._node is None:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(), name="who is master", context=unbound())
                self._asking.add_done_callback(_noted)
            try:
                async with asyncio.timeout_at(until):
                    await asyncio.shield(self._asking)
            except TimeoutError:
                self._lost()
                raise StoreUnavailable(f"{self._target.shown}: no Sentinel answers in time") from None
            except StoreUnavailable:
                self._lost()
                raise
        assert self._node is not None
        return self._node

    async def _ask(self) -> None:
        """Of the Sentinels the first that knows. ``StoreUnavailable``, ``StoreError``."""
        error: RuncastError = StoreUnavailable(f"{self._target.shown}: no Sentinel could be asked")
        for address in list(self._seeds):
            try:
                async with asyncio.timeout(_PATIENCE):
                    master = await self._asked(address)
            except (StoreError, StoreUnavailable) as failed:
                error = failed
            except TimeoutError:
                error = StoreUnavailable(f"Sentinel {show(address)}: no answer in time")
            else:
                self._prefer(address)
                self._take(master)
                return
        raise error

    async def _asked(self, address: Address) -> Address:
        connection = await self._connect(address)
        try:
            name = self._target.master
            request = pack((b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name))
            (reply,) = await exchange(connection, request, 1)
        except RedisError as error:
            raise error_of(error, f"Sentinel {show(address)}", "the connection was lost") from None
        finally:
            await connection.disconnect(nowait=True)
        if isinstance(reply, ResponseError):
            raise error_of(reply, f"Sentinel {show(address)}", "")
        if reply is None:
            raise StoreError(f"Sentinel {show(address)} knows no master of the name {name!r}: see the store's URL")
        return reply[0].decode(), int(reply[1])

    async def _connect(self, address: Address) -> StoreConnection:
        target = self._target.sentinel_at(address)
        connection = make(target)
        try:
            await connection.open()
        except RedisError as error:
            raise error_of(error, target.shown, "no connection") from None
        return connection

    def _prefer(self, address: Address) -> None:
        self._seeds.remove(address)
        self._seeds.insert(0, address)

    def _take(self, master: Address) -> None:
        self._doubted = False
        if master == self._address:
            return
        target = self._target.at(master)
        before, self._node = self._node, Node(target.shown, lambda: make(target), self._lost)
        self._address = master
        if before is not None:
            _log.warning("%s: the master is %s now", self._target.shown, show(master))
            before.retire()
            self._changed()

    # That it is another one now.

    async def _watch(self) -> None:
        while True:
            for address in list(self._seeds):
                try:
                    await self._listen(address)
                except (RuncastError, RedisError, TimeoutError) as error:
                    _log.info("Sentinel %s tells nothing: %s", show(address), str(error) or "no answer in time")
            await asyncio.sleep(_PAUSE)

    async def _listen(self, address: Address) -> None:
        async with asyncio.timeout(_PATIENCE):
            connection = await self._connect(address)
        try:
            async with asyncio.timeout(_PATIENCE):
                await exchange(connection, pack((b"SUBSCRIBE", _SWITCHED)), 1)
            self._doubted = True  # it may have been switched while nobody listened
            with contextlib.suppress(TimeoutError):  # no news is as it should be: the next one is listened to
                async with asyncio.timeout(_LISTEN):
                    while True:
                        self._told(await connection.read_response(disable_decoding=True))
        finally:
            await connection.disconnect(nowait=True)

    def _told(self, message: Sequence[Any]) -> None:
        """``["message", "+switch-master", "NAME OLD-HOST OLD-PORT HOST PORT"]``"""
        words = message[2].decode().split(" ") if message[0] == b"message" else []
        if len(words) == 5 and words[0] == self._target.master:
            self._take((words[3], int(words[4])))


def _noted(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waited has it
