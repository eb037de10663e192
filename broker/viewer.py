"""One consumer of one run's frames, as the hub sees it: where it stands, what it wants, and how to write to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from broker import metrics
from broker.items import Entry, Mode
from broker.tracing import NOTHING, Span

if TYPE_CHECKING:
    from broker.feed import Feed
    from broker.group import Group

__all__ = ["CHUNKED", "PLAIN", "Format", "Framing", "Peer", "Viewer"]

Framing = Callable[[Any], Any]


def _chunk(frames: bytes) -> bytes:
    """HTTP/1.1 chunked framing."""
    return b"%x\r\n%b\r\n" % (len(frames), frames)


def _as_it_is(frames: Any) -> Any:
    return frames


CHUNKED: Framing = _chunk
PLAIN: Framing = _as_it_is
"""No framing: a close-delimited body, an ASGI ``send``, or a consumer in this process."""


class Format(Protocol):
    """Items → frames. Payloads are ``bytes`` in all formats of the wire; whatever is falsy is not written."""

    @property
    def name(self) -> str: ...
    @property
    def heartbeat(self) -> Any: ...
    @property
    def goes_on(self) -> bool:
        """Whether a viewer can go on behind ``gap`` and ``reset``. False: either of them is the last he gets."""
        ...

    def opening(self, retry_ms: int) -> Any: ...
    def retry(self, milliseconds: int) -> Any: ...
    def items(self, run_id: bytes, entries: Sequence[Entry], modes: Mode) -> Any: ...
    def reset(self, run_id: str, reason: str) -> Any: ...
    def gap(self, run_id: str, requested: int, earliest: int, latest: int) -> Any: ...
    def cursor(self, run_id: str, seq: int) -> Any: ...
    def end(self, run_id: str, status: str, last_seq: int) -> Any: ...


class Peer(Protocol):
    """The connection behind a viewer. Nothing here blocks or raises, also once the connection is gone."""

    def waiting(self) -> int:
        """Bytes written and not taken yet: what this viewer costs in memory."""
        ...

    def close(self) -> None:
        """The viewer is finished: close behind what was written, so behind a whole frame."""
        ...

    def abort(self) -> None:
        """Drop the connection, and what waits with it."""
        ...


class Viewer:
    """``write`` takes one framed payload of whole frames and must not block; ``on_finish`` completes the response in
    the very step in which the viewer is finished. ``peer`` is what is watched for progress and can be dropped; a
    consumer in this process has none, and is waited for as long as it takes.

    The owner of the connection calls ``pause`` and ``resume`` as its socket crosses the high- and low-water marks, and
    ``finish("left")`` when the peer is gone. ``seq`` is the last item that was written or filtered out, except while
    the viewer is live: then it stands where its feed stands.
    """

    __slots__ = (
        "_signal",
        "began",
        "closed",
        "compact",
        "demoted",
        "feed",
        "format",
        "framing",
        "group",
        "hidden",
        "hosted",
        "last_write",
        "live",
        "modes",
        "on_finish",
        "paused",
        "peer",
        "reason",
        "run_id",
        "sent",
        "seq",
        "span",
        "write",
    )

    def __init__(
        self,
        run_id: str,
        *,
        format: Format,
        modes: Mode,
        seq: int,
        write: Callable[[Any], None],
        framing: Framing = PLAIN,
        compact: bool = False,
        peer: Peer | None = None,
    ) -> None:
        self.run_id, self.format, self.modes, self.seq = run_id, format, modes, seq
        self.write, self.framing, self.compact, self.peer = write, framing, compact, peer
        self.on_finish: Callable[[], None] | None = None
        self.feed: Feed | None = None
        self.group: Group | None = None
        self.live = self.paused = self.closed = False
        self.demoted = False
        """It left the live group because its socket was full, and is not back yet."""
        self.sent = 0
        self.hosted = False
        """Nobody waits in ``signalled`` while nothing is to be done: the hub is told of changes (``Hub.host``)."""
        self.hidden = 0
        self.began = self.last_write = time.monotonic()
        self.reason = ""
        self.span: Span = NOTHING
        """Lasts as long as the viewer, where there are traces."""
        self._signal: asyncio.Future[None] | None = None

    @property
    def given(self) -> int:
        """Bytes written to it so far, alone or with its group."""
        return self.sent if self.group is None else self.sent + self.group.written

    def send(self, payload: Any) -> None:
        """Write one payload of whole frames to this viewer alone."""
        if payload and not self.closed:
            self.last_write = time.monotonic()
            framed = self.framing(payload)
            if type(framed) is bytes:
                metrics.STREAM_BYTES.inc(len(framed))
                self.sent += len(framed)
            self.write(framed)

    def pause(self) -> None:
        """The socket is full: leave the live group, where it is in one."""
        if not self.paused:
            self.paused = True
            if self.live and self.feed is not None:
                self.feed.demote(self)

    def resume(self) -> None:
        """The socket has drained below its low-water mark."""
        self.paused = False
        self.signal()

    def finish(self, reason: str) -> None:
        """Nothing more will be written. The first reason stays."""
        if not self.closed:
            self.closed, self.reason = True, reason
            if reason not in ("end", "left"):
                metrics.CUT.labels(reason).inc()
            if self.feed is not None:
                self.feed.detach(self)
            self._end_span()
            if self.on_finish is not None:
                self.on_finish()
            self.signal()

    def _end_span(self) -> None:
        self.span.set(runcast__reason=self.reason, runcast__seq=self.seq)
        if self.reason not in ("end", "left", "drain"):
            self.span.fail(self.reason)
        self.span.end()

    def signal(self) -> None:
        if self._signal is not None:
            if not self._signal.done():
                self._signal.set_result(None)
        elif self.hosted and self.feed is not None:
            self.feed.hub.attend(self)

    async def signalled(self, timeout: float | None = None) -> None:
        """Wait until something about this viewer changed: demoted, drained, reset, finished."""
        self._signal = asyncio.get_running_loop().create_future()
        try:
            if timeout is None:
                await self._signal
            else:
                await asyncio.wait((self._signal,), timeout=timeout)
        finally:
            self._signal = None
