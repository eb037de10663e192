"""The ids of the events that were relayed: a service may send one again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["Seen"]

_MOST = 100_000


class Seen:
    """The newest ids, ``most`` of them: what is sent again is what came last."""

    def __init__(self, ids: Iterable[str] = (), most: int = _MOST) -> None:
        self._order: deque[str] = deque()
        self._known: set[str] = set()
        self._most = most
        for id_ in ids:
            self.add(id_)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._known

    def add(self, id_: str) -> None:
        if id_ in self._known:
            return
        self._known.add(id_)
        self._order.append(id_)
        if len(self._order) > self._most:
            self._known.discard(self._order.popleft())
