"""Which answer belongs to which approval of a run at the API server. Pure.

Newer servers give every request an id. 0.19.0 gives none: an answer goes to the request that has waited longest, and
one whose time is up leaves without a word. A late answer could so approve another command than the one that was
asked about. Therefore at most one request is open at such a server; when no tool runs any more nothing waits; and
where two may wait, all are denied.
"""

from __future__ import annotations

from typing import Any

from broker.items import Item, ToolCompleted, ToolFailed, ToolStarted
from workers.hermes.api_events import UNNAMED, UNSEEN
from workers.hermes.calls import Ask, Batch
from workers.hermes.notices import warning

__all__ = ["Approvals"]

_CHOICES = ("once", "session", "always", "deny")


class Approvals:
    """``yolo``: approve everything at once, without asking. Feed it all that was read, in order."""

    def __init__(self, *, yolo: bool) -> None:
        self._yolo = yolo
        self._waiting: dict[str, bool] = {}
        """Requests that are open: key → whether the server knows that key."""
        self._running = 0

    def read(self, batch: Batch) -> tuple[Batch, list[dict[str, Any]]]:
        """What remains of ``batch`` for the reader, and what to post to the server, in order."""
        kept: Batch = []
        posts: list[dict[str, Any]] = []
        for made in batch:
            if isinstance(made, Ask):
                self._asked(made, kept, posts)
            else:
                self._count(made)
                kept.append(made)
        return kept, posts

    def answer(self, key: str, answer: str) -> dict[str, Any] | None:
        """What to post; ``None`` where nothing waits for this answer any more."""
        if key not in self._waiting:
            return None
        choice = answer if answer in _CHOICES else "deny"
        return _post(key, choice, exact=self._waiting.pop(key))

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def _asked(self, ask: Ask, kept: Batch, posts: list[dict[str, Any]]) -> None:
        exact = not ask.key.startswith(UNNAMED)
        if ask.key in self._waiting:
            return
        if ask.key == UNSEEN and not self._yolo:
            self._unseen(kept, posts)
        elif self._yolo:
            posts.append(_post(ask.key, "once", exact=exact))
        elif not exact and self._waiting:
            self._waiting.clear()
            posts.append({"choice": "deny", "all": True})
            message = "two approvals may wait at once, and this Hermes cannot tell them apart: all of them were denied"
            kept.append(warning("approvals_denied", message))
        else:
            self._waiting[ask.key] = exact
            kept.append(ask)

    def _unseen(self, kept: Batch, posts: list[dict[str, Any]]) -> None:
        """The events are lost. It may be the request that is open; otherwise nobody can know what it is about."""
        if not self._waiting:
            posts.append({"choice": "deny", "all": True})
            message = "Hermes asked for an approval while its events were lost: nobody saw for what, so it was denied"
            kept.append(warning("approval_unseen", message))

    def _count(self, item: Item) -> None:
        if isinstance(item, ToolStarted):
            self._running += 1
        elif isinstance(item, (ToolCompleted, ToolFailed)):
            self._running = max(self._running - 1, 0)
            if not self._running:
                self._waiting = {key: exact for key, exact in self._waiting.items() if exact}


def _post(key: str, choice: str, *, exact: bool) -> dict[str, Any]:
    return {"choice": choice, "request_id": key} if exact else {"choice": choice}
