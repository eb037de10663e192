"""Block indexes where the provider gives none: parts of one kind that follow one another are one block."""

from __future__ import annotations

__all__ = ["Places"]


class Places:
    """Hands out the block indexes of one choice, in the order of its parts."""

    def __init__(self) -> None:
        self._count = 0
        self._kind = ""
        self.text: int | None = None
        """The index of the latest text block, which a citation belongs to."""

    def go_on(self, kind: str) -> int:
        """The index of a fragment: the block before it goes on if it is of that kind, else another begins."""
        if kind != self._kind:
            self.alone()
            self._kind = kind
            if kind == "text":
                self.text = self._count - 1
        return self._count - 1

    def alone(self) -> int:
        """The index of a part that is a block by itself."""
        self._kind = ""
        self._count += 1
        return self._count - 1

    def end(self) -> None:
        """The block before is whole: the next part begins another, whatever its kind."""
        self._kind = ""
