"""A collector of OpenTelemetry's protocol over HTTP, as small as a test needs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Collected", "Collector", "collecting"]


@dataclass(frozen=True)
class Collected:
    """One span. ``start`` and ``end`` are seconds."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    attributes: dict[str, Any]
    events: tuple[str, ...]
    status: str
    start: float
    end: float


@dataclass
class Collector:
    url: str
    spans: list[Collected] = field(default_factory=list)

    def named(self, name: str, **attributes: Any) -> list[Collected]:
        """Spans of that name, and with these attributes (``a__b`` is ``a.b``)."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return [s for s in list(self.spans) if s.name == name and wanted.items() <= s.attributes.items()]

    def until(self, found: Callable[[], Any], timeout: float = 20.0) -> Any:
        """Wait until ``found`` finds something."""
        end = time.monotonic() + timeout
        while not (result := found()):
            assert time.monotonic() < end, [s.name for s in self.spans]
            time.sleep(0.05)
        return result


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector("")

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def _spans(request: Any) -> list[Collected]:
    return [
        Collected(
            name=span.name,
            service=_values(resource.resource.attributes)["service.name"],
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            links=tuple(link.span_id.hex() for link in span.links),
            attributes=_values(span.attributes),
            events=tuple(event.name for event in span.events),
            status=span.status.message,
            start=span.start_time_unix_nano / 1e9,
            end=span.end_time_unix_nano / 1e9,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}
