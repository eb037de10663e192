"""Traces. Off, as they are unless ``RUNCAST_TRACES`` is set, nothing of OpenTelemetry is imported.

One trace follows a request through all processes: the gateway's request, the run's wait in the queue, its execution,
the calls of Hermes and of models, its fence, its viewers. What connects the processes is a W3C ``traceparent``: it
comes with the request, is kept in the run's record, and goes on to Hermes and to HTTP services.

Spans carry ids, names and counts; never a prompt, an answer, a query or a header. Where to send them is said in
OpenTelemetry's own variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER`` …), read by its SDK. The
provider is this module's own and not the process's: libraries that look for one there trace nothing of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from broker.errors import InvalidRequest
from broker.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

__all__ = [
    "NOTHING",
    "Span",
    "active",
    "check",
    "http_hooks",
    "ids",
    "is_traceparent",
    "outgoing",
    "span",
    "start",
    "start_span",
    "stop",
    "traceparent",
    "tracing",
]

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Value = str | bool | int | float

_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
"""W3C Trace Context, version 00 and what later versions keep of it."""


class Span(Protocol):
    """What is told of one piece of work. Every method is harmless once it has ended, and where there are no traces."""

    @property
    def traceparent(self) -> str | None:
        """For who goes on with this work elsewhere; ``None``: there are no traces."""

    def set(self, **attributes: Value | None) -> None:
        """Attributes: ``a__b`` stands for ``a.b``. ``None`` sets nothing."""

    def rename(self, name: str) -> None: ...
    def event(self, name: str, **attributes: Value | None) -> None: ...
    def fail(self, code: str) -> None:
        """It did not do what it was to do. ``code`` is one of ours, or a class's name; never a message."""

    def end(self) -> None: ...


class _Nothing:
    """The span of a process without traces, and its context manager: one for all."""

    traceparent = None

    def set(self, **attributes: Value | None) -> None: ...
    def rename(self, name: str) -> None: ...
    def event(self, name: str, **attributes: Value | None) -> None: ...
    def fail(self, code: str) -> None: ...
    def end(self) -> None: ...
    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None: ...


NOTHING: Final[Span] = _Nothing()
"""The span that is none."""
_AROUND_NOTHING = _Nothing()
_tracing: _Tracing | None = None


def active() -> bool:
    """Whether this process traces."""
    return _tracing is not None


def check(settings: Settings) -> None:
    """Raises ``InvalidRequest`` where traces are wanted and what they need is not installed."""
    if not settings.traces:
        return
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        message = f"RUNCAST_TRACES is on, and {error.name or 'OpenTelemetry'} is not installed: install runcast[otel]"
        raise InvalidRequest(message, field="traces") from None


def start(settings: Settings, service: str, *, exporter: SpanExporter | None = None) -> bool:
    """Trace from here on, where the settings want it; ``service`` is what the process is (``OTEL_SERVICE_NAME`` wins).

    Returns whether this call began it: one that finds traces already changes nothing. ``exporter`` is for tests: it
    gets each span at its end. Raises ``InvalidRequest``, as ``check``.
    """
    global _tracing
    if _tracing is not None or not settings.traces:
        return False
    check(settings)
    _tracing = _Tracing(service, exporter)
    return True


def stop() -> None:
    """Send what is left and trace no more. Takes no longer than the exporter's own time limit."""
    global _tracing
    tracing, _tracing = _tracing, None
    if tracing is not None:
        tracing.provider.shutdown()


@contextmanager
def tracing(settings: Settings, service: str) -> Iterator[None]:
    """``start``, and ``stop`` at the end if this call began it."""
    began = start(settings, service)
    try:
        yield
    finally:
        if began:
            stop()


def is_traceparent(value: str) -> bool:
    """Whether it is one: what is not is ignored, as the specification wants it."""
    return _FORM.match(value) is not None


def span(
    name: str,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    link: str | None = None,
    **attributes: Value | None,
) -> AbstractContextManager[Span]:
    """A span around a block, current inside it; an exception that leaves the block fails it by its class's name.

    ``parent`` and ``link`` are traceparents; without a ``parent`` it is a child of what is current.
    """
    if _tracing is None:
        return _AROUND_NOTHING
    return _tracing.around(_tracing.begin(name, kind, parent, link, attributes))


def start_span(
    name: str,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    link: str | None = None,
    since: float | None = None,
    **attributes: Value | None,
) -> Span:
    """A span that the caller ends, and that is current nowhere. ``since``: when it began, seconds since the epoch."""
    if _tracing is None:
        return NOTHING
    return _tracing.begin(name, kind, parent, link, attributes, since)


def traceparent() -> str | None:
    """Of the current span; ``None`` where there is none, or no traces."""
    return None if _tracing is None else _tracing.current()


def ids() -> Mapping[str, str]:
    """``trace_id`` and ``span_id`` of the current span, for log records; nothing where there is none."""
    here = traceparent()
    return {} if here is None else {"trace_id": here[3:35], "span_id": here[36:52]}


def outgoing() -> dict[str, str]:
    """Headers for a request to another service: ``traceparent``, where there is one."""
    here = traceparent()
    return {} if here is None else {"traceparent": here}


def http_hooks() -> dict[str, list[Any]]:
    """``httpx.AsyncClient(event_hooks=…)``: each request goes on with the trace. Nothing where there are no traces."""
    return {} if _tracing is None else {"request": [_send_along]}


async def _send_along(request: Any) -> None:
    request.headers.update(outgoing())


class _Tracing:
    """OpenTelemetry, imported now that it is wanted."""

    def __init__(self, service: str, exporter: SpanExporter | None) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._propagator = TraceContextTextMapPropagator()
        self.provider: TracerProvider = _provider(service, exporter)
        self._tracer: Tracer = self.provider.get_tracer("runcast")

    def begin(
        self,
        name: str,
        kind: Kind,
        parent: str | None,
        link: str | None,
        attributes: Mapping[str, Value | None],
        since: float | None = None,
    ) -> _Span:
        links = [self._api.Link(self._api.get_current_span(self._context(link)).get_span_context())] if link else None
        began = self._tracer.start_span(
            name,
            context=self._context(parent) if parent else None,
            kind=self._api.SpanKind[kind.upper()],
            links=links,
            start_time=None if since is None else int(since * 1e9),
        )
        made = _Span(began)
        made.set(**attributes)
        return made

    def _context(self, traceparent: str) -> Any:
        return self._propagator.extract({"traceparent": traceparent})

    @contextmanager
    def around(self, begun: _Span) -> Iterator[Span]:
        with self._api.use_span(begun.otel, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield begun
            except BaseException as error:
                begun.fail(getattr(error, "code", None) or type(error).__name__)
                raise

    def current(self) -> str | None:
        return _traceparent_of(self._api.get_current_span())


def _provider(service: str, exporter: SpanExporter | None) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    ours = Resource.create().merge(Resource({"service.name": service}))
    provider = TracerProvider(resource=ours.merge(_named_by_operator()))
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        return provider
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _named_by_operator() -> Any:
    """What ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` say, by the SDK's own reader."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return Resource(OTELResourceDetector().detect().attributes)


def _traceparent_of(span: OtelSpan) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"


class _Span:
    """One of OpenTelemetry's."""

    def __init__(self, otel: OtelSpan) -> None:
        self.otel = otel

    @property
    def traceparent(self) -> str | None:
        return _traceparent_of(self.otel)

    def set(self, **attributes: Value | None) -> None:
        self.otel.set_attributes(_named(attributes))

    def rename(self, name: str) -> None:
        self.otel.update_name(name)

    def event(self, name: str, **attributes: Value | None) -> None:
        self.otel.add_event(name, _named(attributes))

    def fail(self, code: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self.otel.set_status(Status(StatusCode.ERROR, code))
        self.set(error__type=code)

    def end(self) -> None:
        self.otel.end()


def _named(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}
