"""Arguments that Gemini streams as values with a JSON path each → fragments of one JSON text.

``[{"jsonPath": "$.city", "stringValue": "Par", "willContinue": true}]`` → ``{"city":"Par``. The values come in the
order of the text, as a rule. One that belongs to a part of the text that is closed already cannot be put there any
more: its top-level key is said once more at the end, whole, and of equal keys every JSON parser takes the last.
What makes no sense (no path, a hole in an array, a value inside a number) stops the text where it is: the call is
then as broken as the stream was. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from workers.providers.reading import as_dict, as_text, dump

__all__ = ["PartialArguments"]

_Path: TypeAlias = tuple[str | int, ...]
_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_MISSING = object()


class PartialArguments:
    """One call's arguments. ``feed`` and ``close`` return the text to append."""

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        self._open: list[str | int] = []
        """The path of the container that the text is in."""
        self._counts = [0]
        """How many members are written of each open container, the root first."""
        self._string: _Path | None = None
        """The string that the text is in."""
        self._late: dict[str, None] = {}
        self._begun = self._broken = False

    def feed(self, values: Sequence[Any]) -> str:
        text = "" if self._begun else "{"
        self._begun = True
        for value in values:
            if not self._broken:
                text += self._add(as_dict(value))
        return text

    def close(self) -> str:
        """The call is whole. Broken arguments stay open: nobody shall take them for whole."""
        text = self.feed(())
        if self._broken:
            return text
        text += self._end_string() + self._leave(0)
        for key in self._late:
            text += self._key(key) + dump_value(self._root[key])
        return text + "}"

    @property
    def in_string(self) -> bool:
        """A string's end has not come yet."""
        return self._string is not None

    # -- one value

    def _add(self, value: dict[str, Any]) -> str:
        raw = as_text(value.get("jsonPath"))
        path = _parse(raw.removesuffix("[]"))
        if path is None or not isinstance(path[0], str):
            return self._break()
        known, depth = self._look_up(path)
        if depth is None or any(isinstance(step, int) and step for step in path[depth + 1 :] if known is _MISSING):
            return self._break()
        told = next((value[n] for n in ("stringValue", "numberValue", "boolValue") if value.get(n) is not None), None)
        if told is None and "nullValue" not in value:
            return self._add_container(path, known, depth, value, [] if raw.endswith("[]") else {})
        if isinstance(told, str) and isinstance(known, str):
            return self._go_on(path, known, told, value)
        if known is not _MISSING:
            return self._break()
        self._set(path, told)
        return self._write(path, depth, told, bool(value.get("willContinue")))

    def _add_container(self, path: _Path, known: Any, depth: int, value: dict[str, Any], empty: Any) -> str:
        """No value: the end of what is there, or an empty array or object."""
        if known is not _MISSING:
            return self._end_string() if path == self._string and not value.get("willContinue") else ""
        if value.get("willContinue"):
            return ""
        self._set(path, empty)
        if self._is_late(path, depth):
            return ""
        return self._end_string() + self._enter(path, isinstance(empty, list))

    def _go_on(self, path: _Path, known: str, told: str, value: dict[str, Any]) -> str:
        self._set(path, known + told)
        if path != self._string:
            self._late.setdefault(str(path[0]))
            return ""
        text = dump_value(told)[1:-1]
        return text if value.get("willContinue") else text + self._end_string()

    def _write(self, path: _Path, depth: int, told: Any, more: bool) -> str:
        if self._is_late(path, depth):
            return ""
        text = self._end_string() + self._enter(path[:-1], isinstance(path[-1], int)) + self._key(path[-1])
        written = dump_value(told)
        if isinstance(told, str) and more:
            self._string = path
            written = written[:-1]
        return text + written

    def _is_late(self, path: _Path, depth: int) -> bool:
        """Whether the text is past the value's place: in a container that exists, but is not open any more."""
        if path[0] in self._late or list(path[:depth]) != self._open[:depth]:
            self._late.setdefault(str(path[0]))
            return True
        return False

    # -- the text

    def _enter(self, path: _Path, array: bool) -> str:
        """Leave and open containers until the text is in that of ``path``, which is an array or an object."""
        same = 0
        while same < min(len(path), len(self._open)) and path[same] == self._open[same]:
            same += 1
        text = self._leave(same)
        for depth in range(same, len(path)):
            inner_array = isinstance(path[depth + 1], int) if depth + 1 < len(path) else array
            text += self._key(path[depth]) + ("[" if inner_array else "{")
            self._open.append(path[depth])
            self._counts.append(0)
        return text

    def _leave(self, depth: int) -> str:
        text = ""
        while len(self._open) > depth:
            text += "]" if isinstance(self._at(tuple(self._open)), list) else "}"
            self._open.pop()
            self._counts.pop()
        return text

    def _key(self, step: str | int) -> str:
        comma = "," if self._counts[-1] else ""
        self._counts[-1] += 1
        return comma + (f"{dump_value(step)}:" if isinstance(step, str) else "")

    def _end_string(self) -> str:
        if self._string is None:
            return ""
        self._string = None
        return '"'

    def _break(self) -> str:
        self._broken = True
        return ""

    # -- the value

    def _look_up(self, path: _Path) -> tuple[Any, int | None]:
        """What stands at ``path``, and how many of the containers around it exist; None: it can stand nowhere."""
        node: Any = self._root
        for depth, step in enumerate(path):
            if isinstance(node, list) and isinstance(step, int):
                if step > len(node):
                    return _MISSING, None
                if step == len(node):
                    return _MISSING, depth
            elif not (isinstance(node, dict) and isinstance(step, str)):
                return _MISSING, None
            elif step not in node:
                return _MISSING, depth
            node = node[step]
        return node, len(path) - 1

    def _at(self, path: _Path) -> Any:
        node: Any = self._root
        for step in path:
            node = node[step]
        return node

    def _set(self, path: _Path, value: Any) -> None:
        """Only where ``_look_up`` found a place, and an array that is new begins with its first member."""
        node: Any = self._root
        for step, following in pairwise(path):
            node = _child(node, step, [] if isinstance(following, int) else {})
        last = path[-1]
        if isinstance(node, list) and last == len(node):
            node.append(value)
        else:
            node[last] = value


def _child(node: Any, step: str | int, new: Any) -> Any:
    if isinstance(node, dict):
        return node.setdefault(step, new)
    if step == len(node):
        node.append(new)
    return node[step]


def _parse(path: str) -> _Path | None:
    """``$.a['b'][0]`` → ``("a", "b", 0)``; None for what is no such path, or the root."""
    if not path.startswith("$") or len(path) < 2:
        return None
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return None
        bare, index, single, double = found.groups()
        quoted = single if single is not None else double
        steps.append(int(index) if index else bare or re.sub(r"\\(.)", r"\1", quoted or ""))
        at = found.end()
    return tuple(steps)


def dump_value(value: Any) -> str:
    """Any JSON value → its text; a string in quotes."""
    return dump([value])[1:-1]
