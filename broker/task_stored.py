"""Changes of a task as the store keeps them. Another version may have written them: what this one cannot read or does
not know must hold up neither the task nor whoever looks at it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from broker.errors import StoreError
from broker.task_model import Change, Trouble
from broker.task_transitions import DECISIONS, RULES

__all__ = ["changes_of", "stored_change"]

_change_decoder = msgspec.json.Decoder(Change)
_UNREADABLE = (ValueError, RecursionError)
"""Of msgspec, for what is no JSON, no text, or of another kind."""
_LATEST = 253_402_300_799.0
"""The last second that has a date, 9999-12-31."""
_BY_MAX = 128


class _Told(msgspec.Struct):
    """What is told of a decision that is not understood: as much as can be."""

    step: Any = None
    by: Any = None


def changes_of(found: Iterable[Any], after: str) -> Iterable[Change]:
    """Entries of a task's decisions → what was decided behind the one of the id ``after``.

    One that this version does not understand comes as the ``decision_refused`` that it leads to.
    """
    for id_, fields in found:
        command = id_.decode()
        if _order(command) > _order(after):
            yield _decision(command, dict(zip(fields[::2], fields[1::2], strict=False)).get(b"d", b""))


def stored_change(stored: bytes | None) -> Change | None:
    """The change that led to the newest version. Raises ``StoreError`` where this version does not know such a one."""
    if stored is None:
        return None
    try:
        change = _change_decoder.decode(stored)
    except _UNREADABLE as error:
        raise StoreError(f"the task's last change is of another version: {error}") from error
    if change.what not in RULES:
        raise StoreError(f"the task's last change is of another version: “{change.what[:64]}” is not known")
    return change


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def _decision(command: str, stored: bytes) -> Change:
    try:
        change = _change_decoder.decode(stored)
    except _UNREADABLE as error:
        return _refused(command, stored, str(error))
    if change.what not in DECISIONS:
        return _refused(command, stored, f"“{change.what[:64]}” is no decision that it knows")
    if not 0.0 <= change.at <= _LATEST:
        return _refused(command, stored, f"{change.at} is no time")
    return msgspec.structs.replace(change, command=command)


def _refused(command: str, stored: bytes, why: str) -> Change:
    try:
        told = msgspec.json.decode(stored, type=_Told)
    except _UNREADABLE:
        told = _Told()
    message = f"this version of Runcast does not understand the decision: {why}"[:1_000]
    return Change(
        what="decision_refused",
        at=min(_order(command)[0] / 1000.0, _LATEST),
        step=told.step if type(told.step) is int and told.step >= 1 else None,
        by=told.by[:_BY_MAX] if isinstance(told.by, str) else "",
        command=command,
        trouble=Trouble(code="invalid_request", message=message),
    )
