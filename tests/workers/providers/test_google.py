"""Gemini's generateContent: small streams, and what may be wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Annotation, MessageDelta, ToolCallDelta, Usage
from broker.merge import Merger
from tests.workers.providers import streams
from tests.workers.providers.streams import Told, check, mutated, split, sse, strange
from workers.providers.google import GoogleGenerateContent

API = "google.generateContent"


def read(*events: Any, round: int = 1, close: bool = True) -> Told:
    return streams.read(API, events, round=round, close=close)


def content(told: Told, choice: int) -> list[dict[str, Any]]:
    merger = Merger()
    for item in told.items:
        merger.add(item)
    blocks: list[dict[str, Any]] = (merger.message(1, choice) or {})["content"]
    return blocks


def chunk(*parts: Any, finish: str | None = None, index: int | None = None, **fields: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, **fields}
    candidate |= {"finishReason": finish} if finish else {}
    candidate |= {} if index is None else {"index": index}
    return {"candidates": [candidate], "modelVersion": "gemini-x", "responseId": "r1"}


def text(text: str, **fields: Any) -> dict[str, Any]:
    return {"text": text, **fields}


STOP = chunk(text(""), finish="STOP")


def test_text_and_the_frame() -> None:
    items = read(chunk(text("He")), chunk(text("He"), text("!")), STOP, round=3)
    assert [(d.text, d.index, d.round) for d in items.of(MessageDelta)] == [("He", 0, 3), ("He", 0, 3), ("!", 0, 3)]
    assert items.events("model.started") == [{"round": 3, "model": "gemini-x", "response_id": "r1"}]
    completed = {"round": 3, "finish_reason": "STOP", "model": "gemini-x", "response_id": "r1"}
    assert items.events("model.completed") == [completed]
    assert items.error is None


def test_thoughts_are_reasoning_and_each_change_of_kind_begins_a_block() -> None:
    parts = [text("Hm", thought=True), text(".", thought=True), text("So"), text("wait", thought=True), text("No")]
    items = read(*(chunk(p) for p in parts), STOP)
    assert items.content == [
        {"type": "reasoning", "text": "Hm."},
        {"type": "text", "text": "So"},
        {"type": "reasoning", "text": "wait"},
        {"type": "text", "text": "No"},
    ]
    assert read(chunk(text("a", thought="yes")), STOP).items[1] == MessageDelta(text="a")


def test_signatures_stay_with_their_part() -> None:
    items = read(
        chunk(text("think", thought=True, thoughtSignature="s1")),
        chunk(text("Hel")),
        chunk(text("lo")),
        chunk(text("", thoughtSignature="s2")),
        chunk(text("more")),
        chunk({"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "s3"}),
        chunk({"thoughtSignature": "s4"}, finish="STOP"),
    )
    assert items.content == [
        {"type": "reasoning", "text": "think", "signature": "s1"},
        {"type": "text", "text": "Hello", "signature": "s2"},
        {"type": "text", "text": "more"},
        {"type": "tool_call", "id": "call_1_1", "name": "f", "arguments": {}, "signature": "s3"},
        {"type": "text", "text": "", "signature": "s4"},
    ]


def test_calls_get_ids_where_they_have_none() -> None:
    first = {"functionCall": {"name": "f", "args": {"city": "Köln", "n": 1}}}
    second = {"functionCall": {"name": "f", "id": "abc", "args": {}}}
    third = {"functionCall": {"name": "g"}}
    items = read(chunk(first, second), chunk(third, finish="STOP"))
    assert [(d.call_id, d.name, d.arguments, d.index) for d in items.of(ToolCallDelta)] == [
        ("call_1_1", "f", '{"city": "Köln", "n": 1}', 0),
        ("abc", "f", "{}", 1),
        ("call_1_3", "g", "", 2),
    ]
    assert items.content[2]["arguments"] == {}


def test_choices_never_mix() -> None:
    both = {
        "candidates": [
            {"content": {"parts": [text("a")]}},
            {"content": {"parts": [{"functionCall": {"name": "f"}}]}, "index": 1},
        ],
    }
    items = read(both, chunk(text("z"), index=1), chunk(text("b"), finish="STOP", index=0))
    assert items.content == [{"type": "text", "text": "ab"}]
    assert [b["type"] for b in content(items, 1)] == ["tool_call", "text"]
    assert items.of(ToolCallDelta)[0].call_id == "call_1_1_1"
    completed = items.events("model.completed")
    assert [(c.get("choice"), c["finish_reason"], c.get("incomplete")) for c in completed] == [
        (None, "STOP", None),
        (1, None, True),
    ]
    assert items.error is not None
    assert items.error.code == "incomplete_stream"


def test_what_was_run_and_what_is_data_is_kept_in_its_place() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}, "thoughtSignature": "s"}
    result = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2\n"}}
    image = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}
    odd = text("labelled", partMetadata={"k": 1})
    items = read(chunk(text("a"), code, result, text("b"), image, odd), STOP)
    kept = [(e["index"], e["block"]) for e in items.events("provider.block")]
    assert kept == [(1, code), (2, result), (4, image), (5, odd)]
    assert [(d.index, d.text) for d in items.of(MessageDelta)] == [(0, "a"), (3, "b")]
    second = read(chunk(code, index=2, finish="STOP"))
    assert second.events("provider.block")[0]["choice"] == 2


def test_citations_are_annotations_of_the_text_so_far() -> None:
    grounding = {"webSearchQueries": ["q"], "groundingChunks": [{"web": {"uri": "u"}}]}
    cited = {"citationSources": [{"startIndex": 0}]}
    items = read(
        chunk(text("t", thought=True), groundingMetadata={}),
        chunk(text("a"), citationMetadata=cited),
        chunk({"functionCall": {"name": "f"}}),
        chunk(finish="STOP", groundingMetadata=grounding),
    )
    assert [(a.index, a.annotation) for a in items.of(Annotation)] == [
        (1, {"citationMetadata": cited}),
        (1, {"groundingMetadata": grounding}),
    ]
    early = read(chunk(index=1, groundingMetadata=grounding), STOP)
    data = {"choice": 1, "groundingMetadata": grounding}
    assert early.events("provider.event") == [{"round": 1, "event": "groundingMetadata", "data": data}]


def test_a_reason_that_is_said_twice_is_one_and_more_content_takes_it_back() -> None:
    def reason(*told: dict[str, Any]) -> Any:
        return [e["finish_reason"] for e in read(*told).events("model.completed")]

    assert reason(chunk(text("a"), finish="STOP"), chunk(text(""), finish="STOP")) == ["STOP"]
    assert reason(chunk(text("a"), finish="STOP"), chunk(text(""), finish="OTHER")) == ["STOP"]
    assert reason(chunk(text("a"), finish="STOP"), chunk(text("b"), finish="SAFETY")) == ["SAFETY"]
    assert reason(chunk(text("a"), finish="FINISH_REASON_UNSPECIFIED"), STOP) == ["STOP"]


def test_what_a_candidate_says_of_itself_is_at_its_end() -> None:
    ratings = [{"category": "X", "probability": "LOW"}]
    items = read(
        chunk(text("a"), safetyRatings=ratings, logprobsResult={"chosenCandidates": []}),
        chunk(finish="MALFORMED_FUNCTION_CALL", finishMessage="no such tool"),
    )
    assert items.events("model.completed")[0]["details"] == {"safetyRatings": ratings, "finishMessage": "no such tool"}
    assert items.events("provider.event")[0]["data"] == {"chosenCandidates": []}


def test_usage_is_cumulative_field_by_field() -> None:
    def told(**counts: Any) -> dict[str, Any]:
        return chunk(text("a")) | {"usageMetadata": counts}

    items = read(
        told(promptTokenCount=15, totalTokenCount=15),
        told(promptTokenCount=13, candidatesTokenCount=2, thoughtsTokenCount=30, cachedContentTokenCount=8),
        told(promptTokenCount=13, candidatesTokenCount=None, totalTokenCount=1),
        told(candidatesTokenCount=5, toolUsePromptTokenCount=100, promptTokensDetails=[{"modality": "TEXT"}]),
        STOP,
    )
    assert items.usage == {
        "input_tokens": 113,
        "output_tokens": 35,
        "cache_read_tokens": 8,
        "cache_write_tokens": None,
        "reasoning_tokens": 30,
    }
    usage = items.of(Usage)
    assert [(u.input_tokens, u.output_tokens, u.reasoning_tokens) for u in usage] == [
        (15, None, None),
        (-2, 32, 30),
        (100, 3, 0),
    ]
    assert sum(u.input_tokens for u in usage) == usage[-1].total["input_tokens"] == 113
    details = {"usageMetadata": {"promptTokensDetails": [{"modality": "TEXT"}]}}
    assert items.events("provider.event") == [{"round": 1, "event": "response", "data": details}]


def test_a_blocked_prompt_is_an_error() -> None:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": "no"}
    items = read({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 4}}, chunk(text("late")))
    assert items.error is not None
    assert (items.error.code, items.error.message) == ("prompt_blocked", "the prompt was blocked: SAFETY (no)")
    assert items.events("model.failed")[0]["reason"] == "SAFETY"
    assert items.events("model.completed")[0]["incomplete"] is True
    assert items.usage is not None
    assert items.usage["input_tokens"] == 4
    assert items.content == []
    assert read(STOP | {"promptFeedback": {"safetyRatings": []}}).error is None


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": 503, "status": "UNAVAILABLE", "message": "overloaded"}, "UNAVAILABLE", "overloaded"),
        ({"code": 500, "message": "oh"}, "500", "oh"),
        ("plain", "provider_error", "plain"),
    ],
)
def test_an_error_in_the_stream(error: Any, code: str, message: str) -> None:
    items = read(chunk(text("Hel")), [{"error": error}], chunk(text("lo")), STOP)
    assert items.error is not None
    assert (items.error.code, items.error.message) == (code, message)
    assert items.content == [{"type": "text", "text": "Hel"}]


@pytest.mark.parametrize("told", [[], [chunk(text("Hel"))], [{"usageMetadata": {"promptTokenCount": 1}}]])
def test_without_a_finish_reason_it_is_incomplete(told: list[Any]) -> None:
    items = read(*told)
    assert items.error is not None
    assert items.error.code == "incomplete_stream"
    assert [e["incomplete"] for e in items.events("model.completed")] == [True]


# -- arguments that are streamed


def call(*values: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return chunk({"functionCall": {**({"partialArgs": list(values)} if values else {}), **fields}})


def value(path: str, told: Any, more: bool | None = None) -> dict[str, Any]:
    names = {str: "stringValue", bool: "boolValue", int: "numberValue", float: "numberValue"}
    field = {names[type(told)]: told} if told is not None else {"nullValue": "NULL_VALUE"}
    return {"jsonPath": path, **field, **({} if more is None else {"willContinue": more})}


def arguments(*told: dict[str, Any]) -> tuple[str, Any]:
    """Streamed values, one part each → the text that came of them and the block."""
    begin = call(name="f", willContinue=True)
    items = read(begin, *(call(v, willContinue=True) for v in told), call(), STOP)
    calls = items.of(ToolCallDelta)
    assert {(d.call_id, d.index) for d in calls} == {("call_1_1", 0)}
    assert [b["type"] for b in items.content] == ["tool_call"]
    return "".join(d.arguments for d in calls), items.content[0]


def test_streamed_values_make_one_text_as_they_come() -> None:
    told = [call(name="f", id="c1", willContinue=True), call(value("$.city", "Pa", True), willContinue=True)]
    begun = read(*told, close=False).of(ToolCallDelta)
    assert [(d.call_id, d.arguments) for d in begun] == [("c1", "{"), ("c1", '"city":"Pa')]
    items = read(*told, call(value("$.city", "ris"), willContinue=True), call(), STOP).of(ToolCallDelta)
    assert items[:2] == begun
    assert items[0].name == "f"
    assert "".join(d.arguments for d in items) == '{"city":"Paris"}'


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ([], "{}"),
        ([value("$.a", 'x"\n', True), value("$.a", "é")], '{"a":"x\\"\\né"}'),
        ([value("$.a", "x", True), {"jsonPath": "$.a"}, value("$.b", 1.5)], '{"a":"x","b":1.5}'),
        ([value("$.a", True), value("$.b", False), value("$.c", None)], '{"a":true,"b":false,"c":null}'),
        (
            [value("$.a.b[0].c", "x"), value("$.a.b[1].c", "y"), value("$.d", 1)],
            '{"a":{"b":[{"c":"x"},{"c":"y"}]},"d":1}',
        ),
        ([value("$.a[0][0]", 1), value("$.a[0][1]", 2), value("$.a[1][0]", 3)], '{"a":[[1,2],[3]]}'),
        ([{"jsonPath": "$.a[]"}, {"jsonPath": "$.o"}, value("$.o.k", 1)], '{"a":[],"o":{"k":1}}'),
        ([value("$.a[0]", 1), {"jsonPath": "$.a[]"}, value("$.b", 2)], '{"a":[1],"b":2}'),
        ([value("$['a b'][\"c.d\"]", 1), value("$['a b'].e", 2)], '{"a b":{"c.d":1,"e":2}}'),
        ([{"jsonPath": "$.a", "willContinue": True}, value("$.a", "x")], '{"a":"x"}'),
    ],
)
def test_streamed_values(told: list[dict[str, Any]], text: str) -> None:
    written, block = arguments(*told)
    assert written == text
    assert block["arguments"] == json.loads(text)


@pytest.mark.parametrize(
    ("told", "right"),
    [
        ([value("$.a.x", 1), value("$.b", 2), value("$.a.y", 3)], {"a": {"x": 1, "y": 3}, "b": 2}),
        ([value("$.a", "x", True), value("$.b", 2), value("$.a", "y")], {"a": "xy", "b": 2}),
        ([value("$.a[0].x", 1), value("$.a[1].x", 2), value("$.a[0].y", 3)], {"a": [{"x": 1, "y": 3}, {"x": 2}]}),
        ([value("$.a.x", 1), value("$.b", 2), {"jsonPath": "$.a.o"}], {"a": {"x": 1, "o": {}}, "b": 2}),
    ],
)
def test_a_value_that_comes_late_is_not_lost(told: list[dict[str, Any]], right: Any) -> None:
    assert arguments(*told)[1]["arguments"] == right


@pytest.mark.parametrize(
    "told",
    [
        [value("$", 1)],
        [value("a", 1)],
        [value("$[0]", 1)],
        [value("$.a[1]", 1)],
        [value("$.a[0]", 1), value("$.a[999999999]", 1)],
        [value("$.b.c[2]", 1)],
        [value("$.a", 1), value("$.a.b", 2)],
        [value("$.a", 1), value("$.a", 2)],
        [value("$.a b]", 1)],
        [{"stringValue": "x"}],
    ],
)
def test_values_that_make_no_sense_leave_the_call_invalid(told: list[dict[str, Any]]) -> None:
    _, block = arguments(*told, value("$.z", 1))
    assert block["arguments"] is None
    assert block["error"]["code"] == "truncated"


def test_a_streamed_call_without_its_end_is_invalid() -> None:
    items = read(
        call(name="f", willContinue=True),
        call(value("$.a", 1), willContinue=True),
        chunk({"functionCall": {"name": "g", "args": {"b": 1}}}, finish="STOP"),
    )
    first, second = items.content
    assert (first["arguments"], first["raw"], first["error"]["repair"]) == (None, '{"a":1', {"a": 1})
    assert (second["name"], second["id"], second["arguments"]) == ("g", "call_1_2", {"b": 1})


def test_a_streamed_call_may_end_with_its_last_value() -> None:
    items = read(call(value("$.a", 1), name="f"), call(), STOP)
    assert items.content == [{"type": "tool_call", "id": "call_1_1", "name": "f", "arguments": {"a": 1}}]


_KEYS = st.text("ab", min_size=1, max_size=2)
_TREES = st.recursive(
    st.integers(-9, 9) | st.booleans() | st.none() | st.text('x"\\\n', max_size=4),
    lambda t: st.lists(t, max_size=3) | st.dictionaries(_KEYS, t, max_size=3),
    max_leaves=8,
)


def _leaves(tree: Any, path: str) -> list[dict[str, Any]]:
    if isinstance(tree, dict) and (tree or path == "$"):
        return [leaf for key, member in tree.items() for leaf in _leaves(member, f"{path}.{key}")]
    if isinstance(tree, list) and tree:
        return [leaf for n, member in enumerate(tree) for leaf in _leaves(member, f"{path}[{n}]")]
    if isinstance(tree, (dict, list)):
        return [{"jsonPath": path + ("[]" if isinstance(tree, list) else "")}]
    if isinstance(tree, str) and len(tree) > 1:
        return [value(path, tree[:1], True), value(path, tree[1:])]
    return [value(path, tree)]


@given(st.dictionaries(_KEYS, _TREES, max_size=4))
def test_any_object_survives_being_streamed(tree: dict[str, Any]) -> None:
    written, block = arguments(*_leaves(tree, "$"))
    assert block["arguments"] == tree
    assert written == json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


COUNTS = {"promptTokenCount": 3, "candidatesTokenCount": 4, "thoughtsTokenCount": 1}
STREAM: list[dict[str, Any]] = [
    chunk(text("a\u2028b"), text("hm", thought=True, thoughtSignature="s")),
    chunk({"functionCall": {"name": "f", "id": "i", "args": {"a": [1]}}, "thoughtSignature": "s"}, index=1),
    chunk({"inlineData": {"data": "QUJD"}}, groundingMetadata={"a": 1}, logprobsResult={"b": 1}),
    call(name="f", willContinue=True),
    call(value("$.a.b", "x", True), value("$.a.b", "y"), willContinue=True),
    call(value("$.c[0]", 1), {"jsonPath": "$.c[]"}, value("$.a.d", 2)),
    call(),
    chunk(finish="STOP") | {"usageMetadata": COUNTS},
]
WORDS = ["candidates", "content", "parts", "text", "functionCall", "partialArgs", "jsonPath", "stringValue", "index"]
OTHERS = ["$.a[0]", "STOP", "finishReason", "usageMetadata", "promptFeedback", "blockReason", "error", "args", "name"]


@given(mutated([*STREAM, {"promptFeedback": {"blockReason": "SAFETY"}}, {"error": {"code": 5, "message": "oh"}}]))
def test_a_stream_that_was_spoiled_raises_nothing(events: list[Any]) -> None:
    check(API, events)


@given(strange(WORDS, OTHERS))
def test_events_without_sense_raise_nothing(events: list[Any]) -> None:
    check(API, events)


@given(st.booleans(), st.lists(st.integers(0, len(sse(STREAM, named=False)))))
def test_every_split_and_framing_gives_the_same_items(array: bool, cuts: list[int]) -> None:
    stream = json.dumps(STREAM, indent=1).encode() if array else sse(STREAM, named=False)
    assert split(API, stream, (c % len(stream) for c in cuts)) == split(API, sse(STREAM, named=False), [])


def test_the_end_is_told_once() -> None:
    adapter = GoogleGenerateContent()
    adapter.feed("", STOP)
    assert len(adapter.close()) == 1
    assert adapter.close() == []
