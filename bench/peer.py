"""A peer as the bench sees it: one process that is measured as ours is, and channels in it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.lab import TEXT
from bench.posting import Poster
from bench.processes import Process

__all__ = ["Channel", "Load", "Peer", "item"]


@dataclass(frozen=True)
class Load:
    """``rounds`` bursts of ``burst`` items, ``pause`` seconds apart, to ``viewers`` viewers."""

    viewers: int
    rounds: int
    burst: int
    pause: float

    @property
    def items(self) -> int:
        return self.rounds * self.burst

    @property
    def frames(self) -> int:
        return self.items * self.viewers

    @property
    def seconds(self) -> float:
        return self.rounds * self.pause


@dataclass(frozen=True)
class Channel:
    """``path`` and ``headers`` read it from its start; ``whole``, where there is such a thing, in one body without
    events. ``send`` publishes ``count`` items, from the seq ``first``."""

    path: str
    send: Callable[[int, int], Awaitable[None]]
    headers: Sequence[str] = ()
    whole: str = ""


class Peer:
    """``mark``: what each frame of an item has, and no other frame. ``share``: the part of a load's rounds that it is
    given, at the same pace: what takes ten times our time would take the whole bench's as well."""

    def __init__(
        self,
        name: str,
        process: Process,
        opened: Callable[[Poster, Load], Awaitable[Channel]],
        *,
        mark: str = "id: ",
        share: float = 1.0,
    ) -> None:
        self.name, self.process, self.mark, self.share = name, process, mark, share
        self._opened = opened

    @asynccontextmanager
    async def channel(self, load: Load) -> AsyncIterator[Channel]:
        """A new one, for such a load."""
        async with Poster(self.process.port) as poster:
            yield await self._opened(poster, load)


def item(seq: int) -> str:
    """What our own items hold."""
    return (
        f'{{"run_id":"run_01kb8d2rqs6x9v3m5t7w8y0z1a","seq":{seq},"ts":{time.time()},"component_id":"agent",'
        f'"round":1,"index":0,"text":"{TEXT}"}}'
    )
