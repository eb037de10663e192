"""Hypothesis strategies for items and for the logs of whole runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from msgspec import UNSET

from broker import items
from broker.items import Encoded, Entry, Event, Item, Message, MessageDelta, ReasoningDelta, RefusalDelta, ToolCallDelta

NASTY = '\u2028\u2029\u0085\r\n\0"\\\t\x1f\x7f\ufeff\uffff🎉é—“'
TEXTS = st.text(st.one_of(st.sampled_from(NASTY), st.characters(codec="utf-8")), max_size=12)
SMALL = st.integers(0, 2)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
_UNSET = st.just(UNSET)
_COUNT = st.none() | st.integers(0, 10**9)
_PLACE: dict[str, st.SearchStrategy[Any]] = {
    "component_id": st.sampled_from(["agent", "step:1"]),
    "session_id": st.sampled_from([UNSET, UNSET, "s"]),
    "parent_run_id": st.sampled_from([UNSET, UNSET, "p"]),
    "round": st.integers(1, 2),
    "index": SMALL,
    "choice": st.sampled_from([UNSET, UNSET, 0, 1]),
}
_ENVELOPE = {"ts": st.sampled_from([0.0, 1.5, 1764445312.345]), **{k: _PLACE[k] for k in list(_PLACE)[:3]}}


def _build(cls: type[Item], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Item]:
    return st.builds(cls, **_ENVELOPE, **fields)


def _delta(cls: type[Item], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Item]:
    return _build(cls, **{k: _PLACE[k] for k in ("round", "index", "choice")}, **fields)


_FENCE = {"usage": st.none() | OBJECTS, "cost": st.none() | OBJECTS, "hermes_session_id": st.none() | TEXTS}
_FAILURE = {"code": TEXTS, "message": TEXTS, "retryable": st.booleans(), "partial": st.none() | OBJECTS, **_FENCE}
_TOOL = {"call_id": st.sampled_from(["", "a", "b", "call_1_1"]), "name": st.sampled_from(["f", "fg", "search"])}
MESSAGES = st.fixed_dictionaries(
    {"content": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2) | TEXTS},
    optional={"role": st.just("assistant"), "finish_reason": TEXTS, "later_field": JSON},
)
_PAYLOAD_KEYS = TEXTS.filter(lambda k: k not in {*items._ENVELOPE, "name", "type", "run_id", "seq"})

_SIGNATURE = st.sampled_from([UNSET, UNSET, UNSET, "s1", "s2"])
TEXT_DELTA = _delta(MessageDelta, text=TEXTS)
SIGNED_DELTA = _delta(MessageDelta, text=TEXTS, signature=_SIGNATURE)
REASONING_DELTA = _delta(ReasoningDelta, text=TEXTS, signature=_SIGNATURE)
REDACTED_DELTA = _delta(ReasoningDelta, redacted=st.sampled_from(["blob", {"a": [1]}]))
REFUSAL_DELTA = _delta(RefusalDelta, text=TEXTS)
CALL_DELTA = _delta(
    ToolCallDelta,
    call_id=_TOOL["call_id"],
    name=st.sampled_from([UNSET, UNSET, "", "f", "g"]),
    arguments=st.sampled_from(["", "{", '{"q":', '"é\u2028"', "}", "1", ", "]),
    kind=st.sampled_from([UNSET, UNSET, UNSET, "custom"]),
    signature=st.sampled_from([UNSET, UNSET, UNSET, "s1"]),
)
ANY_ITEM: dict[str, st.SearchStrategy[Item]] = {
    "message.delta": TEXT_DELTA | SIGNED_DELTA,
    "reasoning.delta": REASONING_DELTA | REDACTED_DELTA,
    "refusal.delta": REFUSAL_DELTA,
    "annotation": _delta(items.Annotation, annotation=JSON),
    "message": _build(Message, round=_PLACE["round"], choice=_PLACE["choice"], message=MESSAGES),
    "tool_call.delta": CALL_DELTA,
    "tool.started": _build(items.ToolStarted, **_TOOL, args=JSON, preview=_UNSET | TEXTS),
    "tool.progress": _build(items.ToolProgress, **_TOOL, preview=TEXTS),
    "tool.completed": _build(items.ToolCompleted, **_TOOL, result=JSON),
    "tool.failed": _build(items.ToolFailed, **_TOOL, error=TEXTS, result=_UNSET | JSON),
    "usage": _build(
        items.Usage,
        input_tokens=_COUNT,
        output_tokens=_COUNT,
        total=st.fixed_dictionaries({}, optional={"input_tokens": _COUNT, "output_tokens": _COUNT}),
    ),
    "cost": _build(items.Cost, amount=st.just("0.01"), total=st.just("0.02")),
    "cache": _build(items.Cache, status=st.sampled_from(["hit", "miss"]), tokens=_COUNT),
    "summary": _build(items.Summary, text=TEXTS, replaces=JSON),
    "event": _build(Event, name=TEXTS, payload=st.dictionaries(_PAYLOAD_KEYS, JSON, max_size=3)),
    "final": _build(items.Final, message=st.none() | OBJECTS, rounds=SMALL, metadata=OBJECTS, **_FENCE),
    "failed": _build(items.Failed, **_FAILURE),
    "cancelled": _build(items.Cancelled, **_FAILURE),
}
ITEMS = st.one_of(*ANY_ITEM.values())
_EVENTS = st.sampled_from(
    [
        Event(name="run.restarted", payload={"attempt": 2}),
        Event(name="model.started", payload={"model": "m", "round": 2}),
        Event(name="model.completed", payload={"finish_reason": "stop"}),
        Event(name="model.completed", payload={"finish_reason": "length"}),
        Event(name="model.completed", payload={"incomplete": True}),
        Event(name="model.completed", payload={"incomplete_blocks": [0, 2]}),
        Event(name="warning"),
    ]
)
# Mostly deltas, and many of one block in a row: what a run looks like, and what compaction works on.
_SPANS = st.one_of(
    st.builds(lambda item, texts: [_with_text(item, t) for t in texts], TEXT_DELTA, st.lists(TEXTS, max_size=6)),
    st.builds(lambda item, texts: [_with_text(item, t) for t in texts], REASONING_DELTA, st.lists(TEXTS, max_size=4)),
    st.lists(CALL_DELTA, max_size=5),
    st.lists(ITEMS, max_size=2),
    _EVENTS.map(lambda event: [event]),
)
RUNS: st.SearchStrategy[list[Item]] = st.lists(_SPANS, max_size=8).map(
    lambda spans: [i for span in spans for i in span]
)


def _with_text(item: Item, text: str) -> Item:
    fields = {name: getattr(item, name) for name in item.__struct_fields__} | {"text": text}
    return type(item)(**fields)


def entry(seq: int, encoded: Encoded) -> Entry:
    return Entry(seq, encoded.type.encode(), encoded.data)


def log_of(run: Iterable[Item | items.Raw]) -> list[Entry]:
    """A run's items as they are stored, seqs from 1, a second apart."""
    return [entry(seq, items.encode(item, ts=1764445312.25 + seq)) for seq, item in enumerate(run, 1)]
