"""Tool calls as a screen tells of them: by name when they begin, by verb when they end, never by id. Pure.

An end belongs to the oldest open call of its name, those of the running round first. A call whose end Hermes does not
show (``display.tool_progress``) stays open: nothing is made up about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from broker.items import Item, ToolProgress
from workers.hermes.tool_calls import OpenCall, ToolCalls
from workers.hermes.tool_lines import UNKNOWN, Began, Ended

__all__ = ["ScreenTools"]

_CUT = 9
"""Characters to which Hermes cuts the name of a tool that it has no verb for."""


@dataclass(slots=True)
class ScreenTools:
    _calls: ToolCalls = field(default_factory=ToolCalls)
    _older: int = 0
    """So many of the open calls are of earlier rounds."""

    def began(self, line: Began) -> list[Item]:
        return [self._calls.start(line.name)]

    def ended(self, line: Ended) -> list[Item]:
        call = self._find(line.name)
        if call is None:
            started: Item = self._calls.start(line.name, preview=line.about)
            return [started, self._calls.end(self._calls.open.pop(), None, line.duration_ms, error=line.error)]
        place = self._calls.open.index(call)
        self._older -= place < self._older
        del self._calls.open[place]
        if call.name == UNKNOWN:  # now it has a name
            call = replace(call, name=line.name)
        return [*_about(call, line), self._calls.end(call, None, line.duration_ms, error=line.error)]

    def next_round(self) -> None:
        self._older = len(self._calls.open)

    def close(self, why: str) -> list[Item]:
        """Hermes broke off: the calls of the running round failed. Of older ones it never said how they ended."""
        del self._calls.open[: self._older]
        self._older = 0
        return self._calls.close(why)

    def _find(self, name: str) -> OpenCall | None:
        calls = self._calls.open[self._older :] + self._calls.open[: self._older]
        for fits in (_is_same, _is_cut, _is_nameless):
            if found := next((call for call in calls if fits(call.name, name)), None):
                return found
        return None


def _about(call: OpenCall, line: Ended) -> list[Item]:
    if not line.about:
        return []
    return [ToolProgress(call_id=call.call_id, name=call.name, preview=line.about, component_id=f"tool:{call.name}")]


def _is_same(name: str, told: str) -> bool:
    return name == told


def _is_cut(name: str, told: str) -> bool:
    return len(told) == _CUT and name.startswith(told)


def _is_nameless(name: str, told: str) -> bool:
    return name == UNKNOWN
