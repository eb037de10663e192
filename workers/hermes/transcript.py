"""The text of a call as its callers want it: all of it, and the last round's. Pure."""

from __future__ import annotations

from broker.items import MessageDelta

__all__ = ["Transcript"]


class Transcript:
    """Folds the text deltas of one call."""

    def __init__(self) -> None:
        self._rounds: dict[int, list[str]] = {}

    def add(self, item: MessageDelta) -> None:
        self._rounds.setdefault(item.round, []).append(item.text)

    @property
    def text(self) -> str:
        """What the deltas add up to, Hermes' joints between rounds included."""
        return "".join(piece for number in sorted(self._rounds) for piece in self._rounds[number])

    @property
    def reply(self) -> str:
        """The text of the last round, without the joint and the white space around it, as ``-Q`` prints it."""
        return "".join(self._rounds[max(self._rounds)]).strip() if self._rounds else ""
