"""What a viewer saw of a run, looked at."""

from __future__ import annotations

from typing import Any

from broker.api import StreamEntry
from broker.items import from_fields
from broker.merge import Merger

__all__ = ["merged", "named", "of_type", "texts"]


def texts(entries: list[StreamEntry]) -> list[str]:
    return [e.fields["text"] for e in entries if e.type == "message.delta"]


def named(entries: list[StreamEntry], name: str) -> list[dict[str, Any]]:
    return [e.fields for e in entries if e.type == "event" and e.fields["name"] == name]


def of_type(entries: list[StreamEntry], type_: str) -> list[dict[str, Any]]:
    return [e.fields for e in entries if e.type == type_]


def merged(entries: list[StreamEntry]) -> dict[str, Any] | None:
    """The merge of what a viewer saw, without the messages and the fence that the worker made of it."""
    merger = Merger()
    for entry in entries:
        if entry.type not in ("message", "final", "failed", "cancelled"):
            fields = {k: v for k, v in entry.fields.items() if k not in ("type", "run_id", "seq")}
            merger.add(from_fields(entry.type, fields))
    return merger.message()
