"""What people say about a task, as the bodies that they send, and the change that each of them is. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from broker.errors import InvalidRequest
from broker.task_model import Change, Risk

__all__ = ["Approve", "ApproveUpTo", "Cancel", "Decision", "Edit", "Reject", "Retry"]


class Decision(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``by``: a name for the history; a principal wins over it."""

    reason: str | None = None
    by: str = ""

    def change(self, step: int | None, principal: str, at: float) -> Change:
        """The change that it is. Raises ``InvalidRequest``."""
        said = {name: getattr(self, name) for name in self.__struct_fields__ if name != "by"}
        return Change(what=_WHAT[type(self)], at=at, step=step, by=principal or self.by, **said)


class Approve(Decision, kw_only=True, frozen=True):
    """``revision``: that of the step as it was looked at; left out, whatever it is."""

    revision: int | None = None


class Reject(Approve, kw_only=True, frozen=True):
    """It needs a ``reason``. ``then``: whether the task halts when the step's turn comes, or goes on without it."""

    then: Literal["halt", "continue"] = "halt"

    def change(self, step: int | None, principal: str, at: float) -> Change:
        if not (self.reason or "").strip():
            raise InvalidRequest("a rejection needs a reason", field="reason")
        return super().change(step, principal, at)


class Edit(Approve, kw_only=True, frozen=True):
    """At least one of the first four."""

    title: str | None = None
    instruction: str | None = None
    risk: Risk | None = None
    approval: bool | None = None


class ApproveUpTo(Decision, kw_only=True, frozen=True):
    """Every step of a risk up to this one that is not approved yet."""

    up_to: Risk


class Retry(Decision, kw_only=True, frozen=True):
    """Go on where the task halted."""


class Cancel(Decision, kw_only=True, frozen=True):
    """End it."""


_WHAT: dict[type[Any], str] = {
    Approve: "step_approved",
    Reject: "step_rejected",
    Edit: "step_edited",
    ApproveUpTo: "approved",
    Retry: "retried",
    Cancel: "cancelled",
}
