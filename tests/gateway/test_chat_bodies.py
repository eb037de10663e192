"""Chat requests → the runs that they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.errors import BadRequest, InvalidRequest, ItemTooBig
from broker.requests import RunRequest
from gateway.chat.bodies import ChatRequest, named_as_here, parse_chat, run_request
from gateway.chat.replies import STYLE_KEY, Style, style_of


def request_of(body: Any, style: Style = Style.LEGACY) -> RunRequest:
    return run_request(parse_chat(json.dumps(body).encode(), style), style, "hermes")


def refused(body: Any, style: Style) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        request_of(body, style)
    assert str(caught.value)
    return caught.value.field


EVERYTHING: dict[str, Any] = {
    "session_id": "s1",
    "model": "m",
    "provider": "p",
    "toolsets": ["web", "files"],
    "artifacts": [{"name": "a.txt", "url": "https://example.org/a.txt"}],
    "metadata": {"a": "b"},
}


@pytest.mark.parametrize("style", Style)
def test_everything_that_a_chat_may_name_is_the_runs(style: Style) -> None:
    request = request_of({"message": "hi", **EVERYTHING}, style)
    given = request.input
    assert (given.message, given.model, given.provider, given.toolsets) == ("hi", "m", "p", ["web", "files"])
    assert given.artifacts is not None
    assert [(a.name, a.url) for a in given.artifacts] == [("a.txt", "https://example.org/a.txt")]
    assert (request.session_id, request.runner, request.on_worker_lost) == ("s1", "hermes", "fail")
    assert request.metadata == {"a": "b", STYLE_KEY: style.value}
    assert style_of(request.metadata) is style


@pytest.mark.parametrize("style", Style)
def test_the_least_is_a_message(style: Style) -> None:
    request = request_of({"message": "hi"}, style)
    assert (request.session_id, request.input.toolsets, request.input.artifacts) == (None, None, None)
    assert request.input.approvals == "yolo"


def test_what_is_empty_was_not_said() -> None:
    blank: dict[str, Any] = {
        "message": "hi",
        "session_id": "",
        "model": "",
        "provider": "",
        "toolsets": "",
        "metadata": {},
    }
    for body in (blank, {name: value or None for name, value in blank.items()}):
        request = request_of(body)
        assert (request.session_id, request.input.model, request.input.provider) == (None, None, None)
        assert not request.input.toolsets


def test_toolsets_may_be_joined() -> None:
    assert request_of({"message": "hi", "toolsets": " web, files ,"}).input.toolsets == ["web", "files"]


def test_metadata_becomes_text_and_cannot_claim_another_style() -> None:
    given = {"n": 1, "list": [1, "ü"], "none": None, "yes": True, "text": "t", STYLE_KEY: "v1"}
    metadata = request_of({"message": "hi", "metadata": given}).metadata
    assert metadata == {"n": "1", "list": '[1,"ü"]', "yes": "true", "text": "t", STYLE_KEY: "legacy"}


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"message": 5}, "message"),
        ({"message": "hi", "colour": "red"}, "colour"),
        ({"message": "hi", "session_id": 5}, "session_id"),
        ({"message": "hi", "toolsets": [1]}, "toolsets[...]"),
        ({"message": "hi", "metadata": []}, "metadata"),
        ({"message": "hi", "artifacts": {}}, "artifacts"),
        ({"message": "hi", "artifacts": ["x"]}, "artifacts[...]"),
        ({"message": "hi", "artifacts": [{"name": "a", "path": "/etc/passwd"}]}, "artifacts[...]"),
        ({"message": "hi", "runner": "scripted"}, "runner"),
    ],
)
def test_what_is_wrong_is_named(style: Style, fields: dict[str, Any], field: str) -> None:
    found = refused(fields, style)
    assert found is not None
    assert found.split("[")[0] == field.split("[")[0]


def test_legacy_needs_a_message() -> None:
    assert refused({}, Style.LEGACY) == "message"
    assert refused({"messages": [{"role": "user", "content": "hi"}]}, Style.LEGACY) in ("message", "messages")


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([{"role": "user", "content": "hi"}], "hi"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
            "c",
        ),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": []}], "a"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "a", "name": "Eve"}], "a"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}], "ab"),
        ([{"role": "assistant", "content": None}, {"role": "user", "content": "a"}], "a"),
    ],
)
def test_the_last_message_of_the_user_is_asked(messages: list[dict[str, Any]], prompt: str) -> None:
    assert request_of({"messages": messages}, Style.V1).input.message == prompt


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "message": "y"}, "message"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
    ],
)
def test_v1_needs_one_prompt_of_text(fields: dict[str, Any], field: str) -> None:
    assert refused(fields, Style.V1) == field


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("style", Style)
def test_what_is_no_json(style: Style, body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_chat(body, style)


def test_v1_is_converted_and_then_one_with_the_legacy_request() -> None:
    v1 = {"messages": [{"role": "user", "content": "hi"}], **EVERYTHING}
    legacy = {"message": "hi", **EVERYTHING}
    parsed = [parse_chat(json.dumps(b).encode(), s) for b, s in ((v1, Style.V1), (legacy, Style.LEGACY))]
    assert parsed[0] == parsed[1]
    assert isinstance(parsed[0], ChatRequest)


def test_fields_of_a_run_are_named_as_those_of_a_chat() -> None:
    with pytest.raises(ItemTooBig) as caught, named_as_here():
        raise ItemTooBig("too big", field="input.message")
    assert caught.value.field == "message"
    with pytest.raises(BadRequest) as other, named_as_here():
        raise BadRequest("no field")
    assert other.value.field is None
