"""What metrics and traces are told of one attempt of one run: its wait, its items, its end.

Nothing here is a label that a client, a model or an agent chooses: runners that are installed, types that are known,
and codes of failures as long as they are few.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation

from broker import tracing
from broker.items import TYPES, Cost, Event, Failed, Final, Item, Raw, Usage
from broker.labels import OTHER, FewLabels
from broker.merge import COUNTS
from broker.records import RunRecord
from broker.tracing import Span
from workers import metrics
from workers.runner import Outcome

__all__ = ["UNKNOWN_RUNNER", "Observation"]

log = logging.getLogger("runcast.worker")

UNKNOWN_RUNNER = "unknown"
_TOKENS = frozenset({"message.delta", "reasoning.delta", "refusal.delta", "tool_call.delta", "message"})
"""The first of these is the first that a viewer sees of the model."""
_TOOLS = {"tool.started": "started", "tool.completed": "completed", "tool.failed": "failed"}
_NOTICES = frozenset({"warning", "retry", "fallback", "merge.mismatch", "run.restarted", "log.rewound"})
_codes = FewLabels(64)
_currencies = FewLabels(8)
_ITEMS = {type_: metrics.ITEMS.labels(type_) for type_ in (*TYPES, OTHER)}


class Observation:
    """One attempt. ``installed``: its runner is; a client may name any other."""

    def __init__(self, record: RunRecord, *, installed: bool) -> None:
        self._record = record
        self._label = record.runner if installed else UNKNOWN_RUNNER
        self._began = time.monotonic()
        self._first = True
        self._items = 0
        self._span: Span = tracing.NOTHING

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the attempt up to its fence: its span is current."""
        record = self._record
        with tracing.span("run", kind="consumer", parent=record.trace) as self._span:
            self._span.set(runcast__run_id=record.run_id, runcast__session_id=record.session_id)
            self._span.set(runcast__attempt=record.attempt, runcast__runner=self._label)
            log.info("run started", extra={"runner": record.runner})
            yield

    def claimed(self) -> None:
        """How long it waited, by the store's clock. Of a later attempt that is not known: only its run's making is."""
        metrics.CLAIMS.labels(self._label).inc()
        record = self._record
        if record.attempt > 1 or record.started is None:
            return
        metrics.QUEUE_WAIT.labels(self._label).observe(max(record.started - record.created, 0.0))
        # It began in another process, and is over.
        waited = tracing.start_span("run.queued", kind="consumer", parent=record.trace, since=record.created)
        waited.set(runcast__run_id=record.run_id, runcast__session_id=record.session_id)
        waited.end()

    def item(self, item: Item | Raw) -> None:
        """It goes to the publisher now."""
        type_ = item.type if isinstance(item, Raw) else str(type(item).__struct_config__.tag)
        _ITEMS.get(type_, _ITEMS[OTHER]).inc()
        self._items += 1
        if self._first and type_ in _TOKENS:
            self._first = False
            metrics.FIRST_TOKEN.labels(self._label).observe(time.monotonic() - self._began)
            self._span.event("first_token")
        elif isinstance(item, Usage):
            self._count_tokens(item)
        elif isinstance(item, Cost):
            self._count_cost(item)
        elif type_ in _TOOLS:
            metrics.TOOL_CALLS.labels(self._label, _TOOLS[type_]).inc()
        elif isinstance(item, Event) and item.name in _NOTICES:
            metrics.NOTICES.labels(item.name).inc()

    def _count_tokens(self, usage: Usage) -> None:
        for name in COUNTS:
            count = getattr(usage, name)
            if isinstance(count, int) and count > 0:
                metrics.TOKENS.labels(self._label, name.removesuffix("_tokens")).inc(count)

    def _count_cost(self, cost: Cost) -> None:
        try:
            amount = Decimal(cost.amount)
        except InvalidOperation:
            return
        if amount.is_finite() and amount > 0:
            metrics.COST.labels(self._label, _currencies(cost.currency)).inc(float(amount))

    def ended(self, outcome: Outcome) -> None:
        """Its fence is stored."""
        name = str(type(outcome).__struct_config__.tag)
        code = "" if isinstance(outcome, Final) else _codes(outcome.code)
        metrics.OUTCOMES.labels(self._label, name, code).inc()
        seconds = time.monotonic() - self._began
        metrics.RUN_SECONDS.labels(self._label, name).observe(seconds)
        _ITEMS[name].inc()
        told = {"outcome": name, "code": code, "items": self._items, "duration_s": round(seconds, 3)}
        log.info("run ended: %s", f"{name}, {code}" if code else name, extra=told)
        self._span.set(runcast__outcome=name, runcast__items=self._items)
        if isinstance(outcome, Failed):
            self._span.fail(code)
