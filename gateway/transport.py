"""uvicorn's httptools protocol, so extended that a stream's frames go from the hub straight to the socket.

``uvicorn --http gateway.transport:StreamProtocol gateway.asgi:app``; any other server works through ASGI ``send``
(gateway/viewer.py), at a higher price per frame.

What is done here and why (docs/architecture.md, “The transport”):

- A viewer is told of its end in ``connection_lost`` itself. Waiting for ``http.disconnect`` in ``receive`` misses it
  when a second request was pipelined, since uvicorn then watches the second.
- A request that is pipelined behind a stream is not answered: the connection closes after the stream.
- HTTP/1.0 bodies are close-delimited, those of other routes too where they state no length; uvicorn would frame them
  in chunks, which such clients cannot read; an application whose ``always_chunked`` is true knows its proxy better.
- What the peer sends during a stream is read, so that its end is seen, and left aside; what is no HTTP ends the
  stream, and is not answered into it.
- A response outlives its application: once a viewer is the hub's, the request's task, scope and cycle are let go.
- The final chunk is written in the step that detaches the viewer: nothing can slip in behind it.
- A connection that is gone leaves no cycle of references: thousands that come and go would wait for the garbage
  collector, which looks at what lived for a while once in a hundred thousand of them.
- ``shutdown``, which uvicorn calls for each connection once the listener has closed, starts the drain: uvicorn itself
  sends no disconnect to responses that never end.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from uvicorn._types import ASGISendEvent, HTTPScope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from broker.viewer import CHUNKED, PLAIN, Framing, Viewer
from gateway.lean import Flow, Nobody, Pipeline
from gateway.sockets import give_up_vanished, hand_over, keep_unsent

__all__ = ["EXTENSION", "StreamProtocol", "StreamResponse"]

EXTENSION = "runcast.connection"
"""Key in ``scope["extensions"]``: a function that opens a ``StreamResponse`` for the request."""

Header = tuple[bytes, bytes]


class StreamResponse:
    """One response whose body the hub writes. Create it, ``start`` it, then give ``write`` to a viewer.

    ``finish`` completes the response; it is safe at any time and when repeated. It is the viewer's ``Peer``, too.
    """

    __slots__ = ("_cycle", "_done", "_protocol", "framing", "viewer", "write")

    def __init__(self, protocol: StreamProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol, self._cycle = protocol, cycle
        self._done = False
        self.viewer: Viewer | None = None
        self.framing: Framing = CHUNKED if protocol.may_chunk(cycle.scope["http_version"]) else PLAIN
        self.write: Callable[[bytes], None] = protocol.transport.write

    @property
    def closed(self) -> bool:
        return self._done or self._cycle.disconnected or self._protocol.transport.is_closing()

    def start(self, headers: Sequence[Header], high_water: int, stall_limit: float) -> None:
        """Write the head. From here on the connection's events reach ``viewer``."""
        cycle, protocol = self._cycle, self._protocol
        protocol.adopt(self, cycle, high_water, stall_limit)
        if protocol.flow.write_paused and self.viewer is not None:
            self.viewer.pause()  # an answer before this one still fills the socket: no second call will say so
        if self.framing is PLAIN:
            cycle.keep_alive = False
        framing: list[Header] = [(b"transfer-encoding", b"chunked")] if self.framing is CHUNKED else []
        closing: list[Header] = [] if cycle.keep_alive else [(b"connection", b"close")]
        lines = [b"%b: %b\r\n" % h for h in (*cycle.default_headers, *headers, *framing, *closing)]
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = self.framing is CHUNKED
        self._log()
        protocol.transport.write(b"".join((STATUS_LINE[200], *lines, b"\r\n")))

    def _log(self) -> None:
        cycle = self._cycle
        if cycle.access_log:
            scope = cycle.scope
            where = get_client_addr(scope), scope["method"], get_path_with_query_string(scope), scope["http_version"]
            cycle.access_logger.info('%s - "%s %s HTTP/%s" %d', *where, 200)

    def finish(self) -> None:
        """The end of the body, and of the connection where it is not kept alive."""
        if self._done:
            return
        self._done, self.viewer = True, None
        cycle, protocol = self._cycle, self._protocol
        protocol.release(self)
        cycle.response_complete = True
        cycle.message_event.set()
        if cycle.disconnected or protocol.transport.is_closing():
            return
        if self.framing is CHUNKED:
            protocol.transport.write(b"0\r\n\r\n")
        if not cycle.keep_alive:
            protocol.transport.close()
        cycle.on_response()

    def waiting(self) -> int:
        transport = self._protocol.transport
        if self._done and self._protocol.stream is not None:
            return 0  # the connection's next stream counts it
        return cast(asyncio.WriteTransport, transport).get_write_buffer_size()

    def close(self) -> None:
        """The kernel takes over what the socket has not taken, if it can: then nothing of it is left here."""
        transport = self._protocol.transport
        hand_over(transport.get_extra_info("socket"), self.waiting())
        transport.close()

    def abort(self) -> None:
        """Drop the connection at once, with whatever its socket has not taken."""
        self._done, self.viewer = True, None
        self._protocol.release(self)
        self._cycle.response_complete = True
        self._cycle.message_event.set()
        self._protocol.transport.abort()

    def detach(self) -> None:
        """Let the application return while the response goes on: the request's task, scope and cycle are freed.

        That is more than half of what an idle viewer would cost.
        """
        if not self._done:
            cycle, self._cycle = self._cycle, cast(RequestResponseCycle, _Rest(self._protocol, self._cycle))
            self._protocol.stand_in(self._cycle)
            cycle.disconnected = True  # so that uvicorn finds nothing wrong with a response that is not complete

    def lost(self) -> None:
        self._cycle.disconnected = True
        self._cycle.message_event.set()
        if self.viewer is not None:
            self.viewer.finish("left")


class _Rest:
    """What a connection still needs of uvicorn's cycle once the application has returned."""

    __slots__ = ("disconnected", "keep_alive", "on_response", "response_complete")

    message_event = Nobody()

    def __init__(self, protocol: StreamProtocol, cycle: RequestResponseCycle) -> None:
        self.keep_alive, self.disconnected = cycle.keep_alive, cycle.disconnected
        self.response_complete = False
        self.on_response = protocol.on_response_complete


def _close_delimited(cycle: RequestResponseCycle) -> Callable[[ASGISendEvent], Coroutine[Any, Any, None]]:
    """``cycle.send`` for an HTTP/1.0 client: a body whose length the application does not state goes out unframed."""
    method, serves = cycle.scope["method"], weakref.ref(cycle)
    unframed = False

    async def unframed_send(message: ASGISendEvent) -> None:
        nonlocal unframed
        cycle = cast(RequestResponseCycle, serves())
        if message["type"] == "http.response.start":
            sized = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not sized and method != "HEAD" and message["status"] not in (204, 304):
                unframed, cycle.chunked_encoding = True, False
        elif message["type"] == "http.response.body" and unframed:
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn holds each part to be all of it
        await RequestResponseCycle.send(cycle, message)

    return unframed_send


class StreamProtocol(HttpToolsProtocol):
    """See the module's text."""

    __slots__ = ("_deaf", "stream")  # beside uvicorn's dict, which two more names would outgrow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pipeline = Pipeline()  # type: ignore[assignment]
        self.stream: StreamResponse | None = None
        self._deaf = False
        """A stream is under way: whatever else the peer sends is read, so that its end is seen, and left aside."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)

    def on_headers_complete(self) -> None:
        if self.stream is not None:
            self._deaf = True
            self.stream._cycle.keep_alive = False
            return
        super().on_headers_complete()
        cycle = self.cycle
        if not self.may_chunk(self.scope["http_version"]):
            cycle.send = _close_delimited(cycle)  # type: ignore[method-assign, assignment]
        serves = weakref.ref(cycle)  # which has the scope
        opens: Any = lambda: StreamResponse(self, cast(RequestResponseCycle, serves()))  # noqa: E731
        self.scope["extensions"] = {EXTENSION: opens}

    def may_chunk(self, version: str) -> bool:
        return version != "1.0" or getattr(self._gateway(), "always_chunked", False)

    def _gateway(self) -> Any:
        app: Any = self.app
        while app is not None and not hasattr(app, "drain"):
            app = getattr(app, "app", None)  # uvicorn wraps the application for proxy headers
        return app

    def on_body(self, body: bytes) -> None:
        # A stream's own request body is of no use, and would pause the reading when it has piled up.
        if not self._deaf and self.stream is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._deaf and self.stream is None:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.stream is None:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def adopt(self, stream: StreamResponse, cycle: RequestResponseCycle, high_water: int, stall_limit: float) -> None:
        self.stream = stream
        if self.pipeline:
            # These came before the stream began. They go unanswered, and the head says that the connection closes.
            self.pipeline.clear()
            self.cycle = cycle
            self._deaf = True
            cycle.keep_alive = False
        self.flow.resume_reading()
        cast(asyncio.WriteTransport, self.transport).set_write_buffer_limits(high=high_water)
        sock = self.transport.get_extra_info("socket")
        give_up_vanished(sock, stall_limit)
        keep_unsent(sock, high_water)

    def stand_in(self, cycle: RequestResponseCycle) -> None:
        self.cycle = cycle
        self.headers = []
        self.scope = cast(HTTPScope, {})

    def release(self, stream: StreamResponse) -> None:
        if self.stream is stream:
            self.stream = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream is not None:
            self.stream.lost()
        super().connection_lost(exc)
        self.pipeline.clear()
        self.stand_in(cast(RequestResponseCycle, None))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.stream is not None and self.stream.viewer is not None:
            self.stream.viewer.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stream is not None and self.stream.viewer is not None:
            self.stream.viewer.resume()

    def shutdown(self) -> None:
        if (gateway := self._gateway()) is not None:
            gateway.drain()
        super().shutdown()
