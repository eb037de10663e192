"""Standard output of ``hermes chat -Q`` → items. Pure. The quiet contract: the whole answer, once, at the end.

Ahead of the answer some notices may stand that Hermes meant for a screen: those end with CR LF, as nothing of the
answer does unless the model wrote it so. A box of reasoning (``display.show_reasoning``) is left open in 0.19.0, holds
some of it twice and some of it not at all: it is left out, and said so. Standard error has the session.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from broker.items import Event, Item, MessageDelta
from workers.hermes.boxes import frame_of
from workers.hermes.notices import code_of, item_of, split_no_reply, warning
from workers.hermes.seen import HermesResult
from workers.hermes.verdict import of_provider

__all__ = ["QuietParser"]

_SESSION = re.compile(r"^session_id: (\S+)$", re.MULTILINE)
_RESUMED = re.compile(r"^↻ Resumed session (\S+)", re.MULTILINE)
_PLAIN_NOTICES = ("turn_limit", "tirith_unavailable")
"""Notices that come by another way, with LF alone."""


@dataclass(slots=True)
class QuietParser:
    """``feed`` what was read, ``heard`` what came on standard error, ``close`` at the end: only then there are items
    but the session. At most ``limit`` bytes of output are kept."""

    limit: int = 16 << 20
    bounded: bool = False
    """The call has a limit of turns. 0.22.2 says of that only by its exit code, which is that of a failure."""
    session_id: str | None = None
    answered: bool = False
    no_reply: str = ""
    limited: bool = False
    guidance: str = ""
    structured: bool = False
    error: str = ""
    model: str | None = None
    duration_ms: float | None = None
    result: HermesResult | None = None
    _kept: list[bytes] = field(default_factory=list)
    _size: int = 0
    _whole: bool = False

    @property
    def closed(self) -> bool:
        """The reply is printed in one go, at the end: where it is there and its line has ended, it is whole. What
        becomes of the process after that (0.22.2 has been seen to crash on its way out) is no matter."""
        return self._whole or self._is_whole(b"".join(self._kept).decode("utf-8", "replace"))

    def _is_whole(self, output: str) -> bool:
        return output.endswith("\n") and bool(self._split(output)[1].strip())

    def feed(self, chunk: bytes) -> list[Item]:
        room = self.limit - self._size
        if room > 0:
            self._kept.append(chunk[:room])
        self._size += len(chunk)
        return []

    def heard(self, stderr: str) -> list[Item]:
        """The session, once it is named there; and again if it rotated."""
        named = _SESSION.findall(stderr) or _RESUMED.findall(stderr)
        if not named or named[-1] == self.session_id:
            return []
        payload = {"hermes_session_id": named[-1]}
        if self.session_id is not None:
            payload["rotated_from"] = self.session_id
        self.session_id = named[-1]
        return [Event(name="hermes.session", payload=payload)]

    def close(self, *, succeeded: bool = True) -> list[Item]:
        output = b"".join(self._kept).decode("utf-8", "replace")
        self._whole = self._is_whole(output)
        items, reply = self._split(output)
        self._kept.clear()
        if self._size > self.limit:
            items.append(warning("output_too_long", f"{self._size - self.limit:,} bytes of output were left out"))
        reply, self.no_reply = split_no_reply(reply)
        if not succeeded and self.bounded and reply.strip() and of_provider(reply, reply) is None:
            self.limited = True
        if succeeded or self.limited:
            self.answered = bool(reply.strip())
            return [*items, MessageDelta(text=reply)] if self.answered else items
        self.guidance = reply.strip()
        return items

    def _split(self, output: str) -> tuple[list[Item], str]:
        """The notices ahead of the reply, and the reply."""
        items: list[Item] = []
        lines = output.split("\n")
        begin, frame = 0, None
        for place, line in enumerate(lines):
            if frame is not None and frame.ends_with(line.removesuffix("\r")):
                begin, frame = place + 1, None
                continue
            found = frame_of(line.removesuffix("\r"))
            if found is not None and found.kind == "reasoning" and line.endswith("\r"):
                frame = found
                items.append(warning("reasoning_shown", "Hermes printed reasoning into its answer: it was left out"))
            elif (item := self._notice(line)) is not None:
                items.append(item)
            elif not line.strip() or (frame is not None and line.endswith("\r")):
                # A blank line belongs to the notice behind it, if there is one.
                begin = place + 1 if line.endswith("\r") else begin
                continue
            else:
                break
            begin = place + 1
        return items, "\n".join(lines[begin:]).removesuffix("\n")

    def _notice(self, line: str) -> Item | None:
        code = code_of(line)
        if code is None or not (line.endswith("\r") or code in _PLAIN_NOTICES):
            return None
        self.limited = self.limited or code == "turn_limit"
        return item_of(line)
