"""Log records: what each has beside its message, how it is written, and what is never written.

What a task works on (``run_id``, ``attempt``, ``session_id``, ``request_id``) is bound once, travels with the task and
whatever it starts, and stands in every record that is made there, whoever logs. Tasks that outlive what happened to
start them (a lane of the tail, the hub's clock) are started in an ``unbound`` context: their records are about no one.

Two formats: ``text`` for people, one JSON object a line (``json``) for machines. Both lose their secrets on the way.
"""

from __future__ import annotations

import contextvars
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from broker import tracing
from broker.redaction import Redactor

__all__ = ["FIELDS", "JsonLines", "TextLines", "bind", "bound", "current", "logging_config", "unbind", "unbound"]

FIELDS = ("request_id", "run_id", "attempt", "session_id")
"""What can be bound."""

Bound = Mapping[str, str | int]
_NOTHING: Bound = MappingProxyType({})
_bound: contextvars.ContextVar[Bound] = contextvars.ContextVar("runcast.bound", default=_NOTHING)

LogFormat = Literal["text", "json"]


def current() -> Bound:
    """What is bound here."""
    return _bound.get()


def bind(**fields: str | int | None) -> contextvars.Token[Bound]:
    """Bind ``fields`` on top of what is bound, for this task and what it starts. ``None`` binds nothing."""
    return _bound.set({**_bound.get(), **{name: value for name, value in fields.items() if value is not None}})


def unbind(token: contextvars.Token[Bound]) -> None:
    """What was bound before ``bind`` gave this token."""
    _bound.reset(token)


@contextmanager
def bound(**fields: str | int | None) -> Iterator[None]:
    """``fields`` are bound inside."""
    token = bind(**fields)
    try:
        yield
    finally:
        unbind(token)


def unbound() -> contextvars.Context:
    """A context for a task that serves everybody: ``asyncio.create_task(…, context=unbound())``.

    It would otherwise be about the request that came first, for ever; the same holds for spans.
    """
    return contextvars.Context()


def logging_config(
    level: str, format: LogFormat = "text", *, secrets: Sequence[str] = (), service: str = ""
) -> dict[str, Any]:
    """For ``logging.config.dictConfig``: everything to stderr, uvicorn's own records among it.

    It can be pickled, so that processes that are started configure themselves alike. ``secrets``: values to be
    blackened wherever they stand. ``service`` is said in each JSON record.
    """
    formatter = {"()": JsonLines if format == "json" else TextLines, "secrets": list(secrets), "service": service}
    quiet = {"level": "WARNING"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": formatter},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines", "stream": "ext://sys.stderr"}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
        "loggers": {
            "uvicorn": {"handlers": [], "propagate": True},
            # It tells of each request to Hermes' API server or a model, with its whole URL.
            "httpx": quiet,
            "httpcore": quiet,
            "urllib3": quiet,
        },
    }


class TextLines(logging.Formatter):
    """``time level logger: message``, and behind it what is bound: ``[run_id=… attempt=1]``."""

    def __init__(self, *, secrets: Sequence[str] = (), service: str = "") -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redact = Redactor(secrets)

    def formatMessage(self, record: logging.LogRecord) -> str:
        about = " ".join(f"{name}={value}" for name, value in current().items())
        return super().formatMessage(record) + (f" [{about}]" if about else "")

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))


class JsonLines(JsonFormatter):
    """One JSON object a line: ``ts``, ``level``, ``logger``, ``message``, what is bound, ``trace_id`` and ``span_id``
    where there are traces, ``exception``, and whatever a record brings along as ``extra``."""

    def __init__(self, *, secrets: Sequence[str] = (), service: str = "") -> None:
        # uvicorn gives each message a second time, with colours.
        super().__init__(reserved_attrs=[*RESERVED_ATTRS, "taskName", "color_message"], json_default=repr)
        self._redact = Redactor(secrets)
        self._service = {"service": service} if service else {}

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        extra: dict[str, Any] = {}
        super().add_fields(extra, record, message_dict)
        log_data["ts"] = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        log_data |= {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        log_data |= {**self._service, "pid": record.process, **current(), **tracing.ids()}
        for theirs, ours in (("exc_info", "exception"), ("stack_info", "stack")):
            if said := extra.pop(theirs, None):
                log_data[ours] = said
        extra.pop("message", None)
        log_data |= {name: value for name, value in extra.items() if name not in log_data}

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        # Before it becomes JSON: a secret that ends in a quote must not take the syntax with it.
        return {name: self._clean(value) for name, value in log_data.items()}

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact(value)
        if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        return self._redact(repr(value))
