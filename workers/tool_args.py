"""What a tool was called with, repeated in the item that ends the call: who comes late has not seen its start.

Repeated shortened, since the start has the whole. Pure: items in, items out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from broker.items import Item, Raw, ToolCompleted, ToolFailed, ToolStarted

__all__ = ["ToolArgs", "shortened"]

ARGS_MAX = 2_048
"""Bytes of JSON up to which they are repeated as they are."""
VALUE_MAX = 200
"""Characters of one argument beyond that."""
NAMES_MAX = 20
OPEN_MAX = 1_000
"""Calls that are under way at once and remembered. An agent that never ends its calls must not fill the memory."""


class ToolArgs:
    """``told`` every item, in order."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    def told(self, item: Item | Raw) -> Item | Raw:
        """The item as it is to be published."""
        if isinstance(item, ToolStarted):
            self._started(item)
        elif isinstance(item, (ToolCompleted, ToolFailed)):
            args = self._open.pop(item.call_id, UNSET)
            if item.args is UNSET and args is not UNSET:
                return msgspec.structs.replace(item, args=args)
        return item

    def _started(self, item: ToolStarted) -> None:
        if item.args in (None, UNSET):
            return
        if len(self._open) >= OPEN_MAX:
            del self._open[next(iter(self._open))]
        self._open[item.call_id] = shortened(item.args)


def shortened(args: Any) -> Any:
    """Arguments in little more than ``ARGS_MAX`` bytes; unset where they have no JSON form."""
    try:
        if len(msgspec.json.encode(args)) <= ARGS_MAX:
            return args
        if isinstance(args, dict):
            return {str(name)[:VALUE_MAX]: _cut(value) for name, value in list(args.items())[:NAMES_MAX]}
        return _cut(args)
    except (TypeError, ValueError, RecursionError):  # it is refused, or mended, where it is published
        return UNSET


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) <= VALUE_MAX:
        return value
    return text[: VALUE_MAX - 1] + "…"
