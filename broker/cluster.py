"""A Redis or Valkey Cluster: each request to the node that has its slot, redirects followed within its deadline.

MOVED, ASK, TRYAGAIN and CLUSTERDOWN all say that nothing was done, so what they answer is sent again, elsewhere or
after a pause, for as long as the request's deadline allows. What was lost on its way is not: whether it was done is
not known, and to repeat it is the caller's to decide.

The map of slots comes from CLUSTER SLOTS of any node. It is looked at anew, once for all who need it, when a node was
seen to be away or answered that a slot is elsewhere; requests do not wait for that.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError

from broker.connections import StoreConnection, make, pack
from broker.errors import RuncastError, StoreError, StoreUnavailable
from broker.logs import unbound
from broker.node import Node, Request
from broker.replies import error_of, redirect_of
from broker.routes import split
from broker.slots import SLOTS, first_key, slot_of
from broker.urls import Address, Target, show

__all__ = ["Cluster"]

_log = logging.getLogger("runcast.store")

_ASKING = pack((b"ASKING",))
_SLOTS = pack((b"CLUSTER", b"SLOTS"))
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.2
_CIRCLES = 3
"""So many redirects of one request in a row are followed at once; nodes that disagree get time from then on."""
_LOOK_EVERY = 0.1
_LOOK_PATIENCE = 0.5
"""Seconds for one node to tell the map: another one may know it as well."""


class _Hop:
    """A request on its way: where it goes next."""

    __slots__ = ("asking", "count", "number", "request", "slot", "to")

    def __init__(self, number: int, request: Request, slot: int) -> None:
        self.number, self.request, self.slot = number, request, slot
        self.to: Address | None = None
        """Where a redirect said; ``None``: where the map says."""
        self.asking = False
        self.count = 0


class Cluster:
    """``home``: a key whose node answers what has no key, so that one clock counts for all processes.

    ``lost`` is called whenever a node was seen to be away, ``changed`` when slots have moved.
    """

    sharded = True

    def __init__(self, target: Target, home: bytes, lost: Callable[[], None], changed: Callable[[], None]) -> None:
        self._target, self._lost, self._changed = target, lost, changed
        self._home = slot_of(home)
        self._nodes: dict[Address, Node] = {}
        self._map: list[Address | None] = [None] * SLOTS
        self._known: list[Address] = list(target.seeds)
        """Whom to ask for the map: all nodes, replicas too, then the seeds."""
        self._looking: asyncio.Task[None] | None = None
        self._looked = float("-inf")
        self._closed = False

    @property
    def nodes(self) -> Sequence[Node]:
        return list(self._nodes.values())

    def servers(self) -> Sequence[Node]:
        return [self._node(address) for address in sorted({address for address in self._map if address})]

    async def start(self, until: float) -> None:
        await self._look(until)

    async def aclose(self) -> None:
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for node in self.nodes:
            await node.aclose()

    # Requests.

    async def request(self, requests: Sequence[Request], until: float) -> list[list[Any]]:
        hops = [_Hop(number, request, self._slot(request)) for number, request in enumerate(requests)]
        done: list[list[Any]] = [[]] * len(hops)
        pause, waits = _FIRST_PAUSE, False
        while hops:
            if waits:
                await self._wait(pause, until)
                pause = min(pause * 2, _LAST_PAUSE)
            waits, left = False, []
            for hop, replies in await self._round(hops, until):
                redirect = redirect_of(replies)
                if redirect is None:
                    done[hop.number] = replies
                    continue
                waits |= self._redirect(hop, redirect)
                left.append(hop)
            hops = sorted(left, key=lambda hop: hop.number)
        return done

    def _slot(self, request: Request) -> int:
        for command in request.commands:
            if (key := first_key(command)) is not None:
                return slot_of(key)
        return self._home

    async def _round(self, hops: Sequence[_Hop], until: float) -> list[tuple[_Hop, list[Any]]]:
        """Send each once, node by node at the same time. The first failure is raised when all have ended."""
        groups: dict[Address, list[_Hop]] = {}
        for hop in hops:
            groups.setdefault(hop.to or self._at(hop.slot), []).append(hop)
        if len(groups) == 1:
            ((address, group),) = groups.items()
            return await self._send(address, group, until)
        sent = await asyncio.gather(*(self._send(*group, until) for group in groups.items()), return_exceptions=True)
        for outcome in sent:
            if isinstance(outcome, BaseException):
                raise outcome
        return [pair for outcome in sent if not isinstance(outcome, BaseException) for pair in outcome]

    async def _send(self, address: Address, hops: Sequence[_Hop], until: float) -> list[tuple[_Hop, list[Any]]]:
        requests = [_asked(hop.request) if hop.asking else hop.request for hop in hops]
        packed, count = b"".join([r.packed for r in requests]), sum([r.replies for r in requests])
        try:
            replies = await self._node(address).exchange(packed, count, until)
        except StoreUnavailable:
            self._look_again()
            raise
        parts = split(replies, requests)
        return [(hop, part[1:] if hop.asking else part) for hop, part in zip(hops, parts, strict=True)]

    def _redirect(self, hop: _Hop, reply: ResponseError) -> bool:
        """Where to go next, and whether to wait before."""
        hop.count += 1
        hop.to, hop.asking = None, isinstance(reply, AskError) and not isinstance(reply, MovedError)
        if isinstance(reply, AskError):
            hop.to = self._address(reply, hop.slot)
        if isinstance(reply, MovedError):
            self._moved(hop.slot, self._address(reply, hop.slot))
        elif isinstance(reply, ClusterDownError):
            self._lost()
            self._look_again()
        return hop.count > _CIRCLES or not isinstance(reply, AskError)

    def _address(self, reply: AskError, slot: int) -> Address:
        # An empty host stands for the one that answered.
        return reply.host or self._at(slot)[0], reply.port

    async def _wait(self, pause: float, until: float) -> None:
        left = until - asyncio.get_running_loop().time()
        if left <= pause:
            self._lost()
            raise StoreUnavailable(f"{self._target.shown}: slots are on the move, or without a node, for too long")
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    # Links.

    async def node_for(self, key: bytes | None, until: float) -> Node:
        return self._node(self._at(self._home if key is None else slot_of(key)))

    def still(self, node: Node, key: bytes | None) -> bool:
        address = self._map[self._home if key is None else slot_of(key)]
        return address is not None and self._nodes.get(address) is node

    def doubt(self, node: Node, key: bytes | None = None, moved: AskError | None = None) -> None:
        if moved is not None and key is not None:
            slot = slot_of(key)
            self._moved(slot, self._address(moved, slot))
        else:
            node.doubted = True
        self._look_again()

    # The map.

    def _at(self, slot: int) -> Address:
        address = self._map[slot]
        if address is None:
            self._look_again()
            raise StoreUnavailable(f"{self._target.shown}: no node serves slot {slot}")
        return address

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            target = self._target.at(address)
            node = self._nodes[address] = Node(target.shown, _maker(target), self._lost)
        return node

    def _moved(self, slot: int, address: Address) -> None:
        if self._map[slot] != address:
            self._map[slot] = address
            self._changed()
        self._look_again()

    def _look_again(self) -> None:
        if not self._closed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_soon(), name="cluster map", context=unbound())

    async def _look_soon(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._looked + _LOOK_EVERY - loop.time()))
        try:
            await self._look(loop.time() + _LOOK_PATIENCE * len(self._known))
        except RuncastError as error:
            _log.info("the map of the cluster could not be read: %s", error)  # the next request asks again

    async def _look(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        self._looked = loop.time()
        error: Exception = StoreUnavailable(f"{self._target.shown}: no node could be asked")
        for address in self._candidates():
            try:
                shards = await self._ask(address, min(until, loop.time() + _LOOK_PATIENCE))
            except StoreError as refused:
                error = refused
            except StoreUnavailable as away:
                error = away
            else:
                self._take(shards, address)
                return
            if loop.time() >= until:
                break
        raise error

    def _candidates(self) -> list[Address]:
        """Nodes that are well first. The order is another one each time, as any of them may be behind."""
        known = random.sample(self._known, len(self._known))
        return sorted(known, key=lambda address: address in self._nodes and self._nodes[address].doubted)

    async def _ask(self, address: Address, until: float) -> list[Any]:
        shown = self._target.at(address).shown
        (shards,) = await self._node(address).exchange(_SLOTS, 1, until)
        if isinstance(shards, ResponseError):
            raise error_of(shards, shown, "")
        if not shards:
            raise StoreUnavailable(f"{shown}: it knows of no slots (yet)")
        return list(shards)

    def _take(self, shards: Iterable[Sequence[Any]], told_by: Address) -> None:
        fresh: list[Address | None] = [None] * SLOTS
        known: dict[Address, None] = {}
        for first, last, *nodes in shards:
            addresses = [_address_of(node, told_by) for node in nodes]
            fresh[first : last + 1] = [addresses[0]] * (last + 1 - first)
            known.update(dict.fromkeys(addresses))
        known.update(dict.fromkeys(self._target.seeds))
        self._known = list(known)
        before, self._map = self._map, fresh
        owners = set(fresh)
        for address in [address for address in self._nodes if address not in owners]:
            self._nodes.pop(address).retire()
        if before != fresh:
            _log.info("the cluster's slots lie on %s", ", ".join(sorted(show(a) for a in owners if a)))
            if any(before):
                self._changed()


def _asked(request: Request) -> Request:
    return Request(request.commands, _ASKING + request.packed, request.replies + 1)


def _address_of(node: Sequence[Any], told_by: Address) -> Address:
    host = node[0].decode() if node[0] else ""
    return host if host not in ("", "?") else told_by[0], int(node[1])


def _maker(target: Target) -> Callable[[], StoreConnection]:
    return lambda: make(target)
