"""What a run did before its last message: the messages of its earlier rounds, and what its tools answered. Pure.

It is kept with the fence (``steps``), since the items expire long before a run's record does, and whoever opens a
conversation wants to see the whole turn. Each step is an object:

    {type: "message", round, message, ts}                                  of a round before the last
    {type: "tool", round, call_id, name, result | error, duration_ms, ts}  the ``round`` is that of the call;
                                                                           ``behind: true``: behind the last message
    {type: "left_out", count}                                              first, where not all could be kept

A round's message comes before its tools. Bounded: a long result or message is cut, and of too many steps the newest
stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from broker.items import Event, Item, Message, Raw, StreamItem, ToolCompleted, ToolFailed, scrub
from broker.limits import shortened
from broker.merge import Merger

__all__ = ["STEPS_BYTES", "Steps"]

STEPS_BYTES = 128 << 10
"""Of all steps together, as JSON."""
MESSAGE_BYTES = 16 << 10
RESULT_CHARACTERS = 4_000
TOOLS_MAX = 1_000
"""Results that are remembered while the run goes on: the newest."""
_LEFT_OUT_BYTES = 64

_Step: TypeAlias = dict[str, Any]


class Steps:
    """``add`` every item of a run behind adding it to ``merger``, in order; ``told`` at the end."""

    def __init__(self, merger: Merger) -> None:
        self._merger = merger
        self._tools: list[_Step] = []
        self._times: dict[int, float] = {}
        self._forgotten = 0

    def add(self, item: StreamItem | Item | Raw, ts: float) -> None:
        """``ts``: when it was published, where the item does not say."""
        if isinstance(item, Message):
            self._times[item.round] = item.ts or ts
        elif isinstance(item, (ToolCompleted, ToolFailed)):
            self._add_tool(item, item.ts or ts)
        elif isinstance(item, Event) and item.name == "run.restarted":
            self._tools.clear()
            self._times.clear()
            self._forgotten = 0

    def _add_tool(self, item: ToolCompleted | ToolFailed, ts: float) -> None:
        said = ("error", item.error) if isinstance(item, ToolFailed) else ("result", item.result)
        known = {"call_id": item.call_id, "name": item.name, said[0]: _text(said[1])}
        times = {"duration_ms": item.duration_ms, "ts": ts}
        self._tools.append({"type": "tool", "round": self._merger.round_of(item.call_id), **known, **times})
        if len(self._tools) > TOOLS_MAX:
            del self._tools[0]
            self._forgotten += 1

    def told(self, room: int = STEPS_BYTES) -> list[_Step]:
        """The steps, in ``room`` bytes of JSON; ``[]`` where there are none, or none fits."""
        left = min(room, STEPS_BYTES) - _LEFT_OUT_BYTES
        kept: list[list[_Step]] = []
        groups = list(self._groups())
        for group in reversed(groups):
            fitting = _fitting(group, left)
            left -= sum(map(_size, fitting))
            kept.append(fitting)
            if len(fitting) < len(group):
                break  # the older ones go too: what is kept has no hole in it
        steps = [step for group in reversed(kept) for step in group]
        left_out = self._forgotten + sum(map(len, groups)) - len(steps)
        return [{"type": "left_out", "count": left_out}, *steps] if steps and left_out else steps

    def _groups(self) -> Iterator[list[_Step]]:
        """Each round's steps, its message first."""
        tools: dict[int, list[_Step]] = {}
        for step in self._tools:
            tools.setdefault(step["round"], []).append(step)
        last = self._merger.rounds
        for number in range(1, max(last, *tools, 1) + 1):
            of_tools = tools.get(number, [])
            if number >= last:
                group = [{**step, "behind": True} for step in of_tools]
            else:
                group = [*self._message(number, of_tools), *of_tools]
            if group:
                yield group

    def _message(self, number: int, tools: list[_Step]) -> Iterator[_Step]:
        if (message := self._merger.message(number)) is not None:
            step = {"type": "message", "round": number, "message": shortened(scrub(message), MESSAGE_BYTES)}
            at = self._times.get(number) or (tools[0]["ts"] if tools else 0)
            yield {**step, "ts": at} if at else step


def _fitting(group: list[_Step], room: int) -> list[_Step]:
    for at, step in enumerate(group):
        room -= _size(step)
        if room < 0:
            return group[:at]
    return group


def _size(step: _Step) -> int:
    return len(msgspec.json.encode(step)) + 1


def _text(said: Any) -> str:
    if said is UNSET or said is None:
        return ""
    text = said if isinstance(said, str) else msgspec.json.encode(scrub(said)).decode()
    return str(scrub(text if len(text) <= RESULT_CHARACTERS else text[:RESULT_CHARACTERS] + "…"))
