"""Which server a request goes to: the seam between the store and what may lie under it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from redis.exceptions import AskError

from broker.connections import StoreConnection
from broker.node import Node, Request
from broker.urls import Target

__all__ = ["OneServer", "Route"]


class Route(Protocol):
    """Made by the store. Times are the event loop's."""

    sharded: bool
    """Keys lie on several servers, by their slots."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Those that are spoken to."""

    def servers(self) -> Sequence[Node]:
        """Those that have keys, spoken to or not."""

    async def start(self, until: float) -> None:
        """Find the servers. ``StoreUnavailable``, ``Refused``."""

    async def request(self, requests: Sequence[Request], until: float) -> list[list[Any]]:
        """Each done at most once, within the deadline: → the replies of each; error replies are ``ResponseError``s.

        Requests of one slot are done in order. ``StoreUnavailable``: some were not done, or nobody knows.
        """

    async def node_for(self, key: bytes | None, until: float) -> Node:
        """The server that has that key now, or any. ``StoreUnavailable``, ``Refused``."""

    def still(self, node: Node, key: bytes | None) -> bool:
        """Whether ``node_for`` would say the same, as far as is known."""

    def doubt(self, node: Node, key: bytes | None = None, moved: AskError | None = None) -> None:
        """A link to it was lost; ``moved``: its ``key`` lies elsewhere."""

    async def aclose(self) -> None: ...


class OneServer:
    """A server with an address of its own."""

    sharded = False

    def __init__(
        self,
        target: Target,
        make: Callable[[], StoreConnection],
        lost: Callable[[], None],
        open: Callable[[StoreConnection], Awaitable[None]],
    ) -> None:
        self._node = Node(target.shown, make, lost, open)
        self.nodes = (self._node,)

    def servers(self) -> Sequence[Node]:
        return self.nodes

    async def start(self, until: float) -> None:
        pass

    async def request(self, requests: Sequence[Request], until: float) -> list[list[Any]]:
        if len(requests) == 1:
            return [await self._node.exchange(requests[0].packed, requests[0].replies, until)]
        count = sum([request.replies for request in requests])
        replies = await self._node.exchange(b"".join([request.packed for request in requests]), count, until)
        return split(replies, requests)

    async def node_for(self, key: bytes | None, until: float) -> Node:
        return self._node

    def still(self, node: Node, key: bytes | None) -> bool:
        return True

    def doubt(self, node: Node, key: bytes | None = None, moved: AskError | None = None) -> None:
        pass

    async def aclose(self) -> None:
        await self._node.aclose()


def split(replies: list[Any], requests: Sequence[Request]) -> list[list[Any]]:
    """The replies of all, in one list → those of each."""
    parts, at = [], 0
    for request in requests:
        parts.append(replies[at : at + request.replies])
        at += request.replies
    return parts
