"""The HTTP request of each API, from a run's request and its metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import SecretStr

from workers.llm.endpoints import Endpoint, root
from workers.llm.options import Options, parse_options
from workers.llm.requests import ANTHROPIC_MAX_TOKENS, HttpCall, build
from workers.llm.settings import APIS
from workers.runner import RunnerFailed

KEY = "sk-secret-key"
ALL = Options(system="Be brief.", temperature=0.5, top_p=0.9, max_output_tokens=77, stop=("END", "FIN"))
WITHOUT_STOP = Options(system="Be brief.", temperature=0.5, top_p=0.9, max_output_tokens=77)


def _build(api: str, options: Options, model: str = "m", base_url: str = "https://h", **more: Any) -> HttpCall:
    endpoint = Endpoint(api=api, url=root(api, base_url), key=SecretStr(more.pop("key", KEY)), seller="", **more)
    return build(endpoint, model, "hello", options)


def _body(call: HttpCall) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(call.body)
    return body


_USER = {"role": "user", "content": "hello"}
_SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("api", "url", "bare"),
    [
        (
            "openai.chat",
            "https://h/v1/chat/completions",
            {"messages": [_USER], "stream": True, "stream_options": {"include_usage": True}},
        ),
        ("mistral.chat", "https://h/v1/chat/completions", {"messages": [_USER], "stream": True}),
        ("openai.responses", "https://h/v1/responses", {"input": "hello", "stream": True, "store": False}),
        (
            "anthropic.messages",
            "https://h/v1/messages",
            {"messages": [_USER], "stream": True, "max_tokens": ANTHROPIC_MAX_TOKENS},
        ),
        ("cohere.chat", "https://h/v2/chat", {"messages": [_USER], "stream": True}),
        ("ollama.chat", "https://h/api/chat", {"messages": [_USER], "stream": True}),
    ],
)
def test_what_is_not_said_is_not_sent(api: str, url: str, bare: dict[str, Any]) -> None:
    call = _build(api, Options())
    assert call.url == url
    assert _body(call) == {"model": "m", **bare}


def test_gemini_has_its_model_in_the_path() -> None:
    call = _build("google.generateContent", Options())
    assert call.url == "https://h/v1beta/models/m:streamGenerateContent?alt=sse"
    assert _body(call) == {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("models/m", "models/m"),
        ("tunedModels/m", "tunedModels/m"),
        ("../../admin", "models/..%2F..%2Fadmin"),
        ("models/../x", "models/..%2Fx"),
        ("m?key=1#x", "models/m%3Fkey%3D1%23x"),
        ("a b", "models/a%20b"),
    ],
)
def test_a_models_name_stays_a_name(model: str, path: str) -> None:
    call = _build("google.generateContent", Options(), model=model)
    assert call.url == f"https://h/v1beta/{path}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (
            "openai.chat",
            {"messages": [_SYSTEM, _USER], "temperature": 0.5, "top_p": 0.9, "max_tokens": 77, "stop": ["END", "FIN"]},
        ),
        (
            "mistral.chat",
            {"messages": [_SYSTEM, _USER], "temperature": 0.5, "top_p": 0.9, "max_tokens": 77, "stop": ["END", "FIN"]},
        ),
        (
            "anthropic.messages",
            {
                "system": "Be brief.",
                "messages": [_USER],
                "temperature": 0.5,
                "top_p": 0.9,
                "max_tokens": 77,
                "stop_sequences": ["END", "FIN"],
            },
        ),
        (
            "cohere.chat",
            {
                "messages": [_SYSTEM, _USER],
                "temperature": 0.5,
                "p": 0.9,
                "max_tokens": 77,
                "stop_sequences": ["END", "FIN"],
            },
        ),
        (
            "ollama.chat",
            {
                "messages": [_SYSTEM, _USER],
                "options": {"temperature": 0.5, "top_p": 0.9, "num_predict": 77, "stop": ["END", "FIN"]},
            },
        ),
        (
            "google.generateContent",
            {
                "systemInstruction": {"parts": [{"text": "Be brief."}]},
                "generationConfig": {
                    "temperature": 0.5,
                    "topP": 0.9,
                    "maxOutputTokens": 77,
                    "stopSequences": ["END", "FIN"],
                },
            },
        ),
    ],
)
def test_options_have_each_apis_own_names(api: str, fields: dict[str, Any]) -> None:
    body = _body(_build(api, ALL))
    assert {name: body[name] for name in fields} == fields


def test_the_responses_api_has_no_stop_texts() -> None:
    body = _body(_build("openai.responses", WITHOUT_STOP))
    assert (body["instructions"], body["max_output_tokens"], body["top_p"]) == ("Be brief.", 77, 0.9)
    with pytest.raises(RunnerFailed) as failed:
        _build("openai.responses", ALL)
    assert failed.value.code == "invalid_option"


@pytest.mark.parametrize("host", ["https://api.openai.com", "https://x.openai.azure.com/openai/v1"])
def test_where_the_old_name_of_the_limit_is_refused(host: str) -> None:
    body = _body(_build("openai.chat", ALL, base_url=host))
    assert body["max_completion_tokens"] == 77
    assert "max_tokens" not in body


@pytest.mark.parametrize(
    ("api", "name", "value"),
    [
        ("openai.chat", "authorization", f"Bearer {KEY}"),
        ("openai.responses", "authorization", f"Bearer {KEY}"),
        ("mistral.chat", "authorization", f"Bearer {KEY}"),
        ("cohere.chat", "authorization", f"Bearer {KEY}"),
        ("ollama.chat", "authorization", f"Bearer {KEY}"),
        ("anthropic.messages", "x-api-key", KEY),
        ("google.generateContent", "x-goog-api-key", KEY),
    ],
)
def test_the_key_is_a_header_and_nowhere_else(api: str, name: str, value: str) -> None:
    call = _build(api, Options())
    assert call.headers[name] == value
    assert KEY not in call.url + call.body.decode() + repr(call)
    without = _build(api, Options(), key="")
    assert name not in without.headers
    if api == "anthropic.messages":
        assert without.headers["anthropic-version"]


def test_headers_of_the_operator_replace_ours() -> None:
    call = _build(
        "openai.chat", Options(), headers={"Authorization": SecretStr("Token t"), "X-Team": SecretStr("blue")}
    )
    assert (call.headers["authorization"], call.headers["x-team"]) == ("Token t", "blue")
    assert [name for name in call.headers if name.lower() == "authorization"] == ["authorization"]


def test_extra_fields_are_merged() -> None:
    extra = {"stream_options": {"include_obfuscation": False}, "reasoning_effort": "high", "stop": ["X"]}
    body = _body(_build("openai.chat", Options(stop=("END",), extra=extra)))
    assert body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    assert (body["reasoning_effort"], body["stop"]) == ("high", ["X"])


# Options.


def test_metadata_that_is_understood() -> None:
    metadata = {
        "system": "s",
        "temperature": "0",
        "top_p": "1",
        "max_output_tokens": "5",
        "stop": '["a", "b"]',
        "extra": '{"seed": 1}',
        "x-ticket": "whatever",
    }
    expected = Options(system="s", temperature=0, top_p=1, max_output_tokens=5, stop=("a", "b"), extra={"seed": 1})
    assert parse_options(metadata) == expected
    assert parse_options({"stop": "[END"}).stop == ("[END",)
    assert parse_options({}) == Options()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temprature", "1"),
        ("temperature", "2.1"),
        ("temperature", "-0.1"),
        ("temperature", "nan"),
        ("temperature", "hot"),
        ("top_p", "0"),
        ("top_p", "1.1"),
        ("max_output_tokens", "0"),
        ("max_output_tokens", "-1"),
        ("max_output_tokens", "1.5"),
        ("max_output_tokens", "9" * 5000),
        ("stop", ""),
        ("stop", "[]"),
        ("stop", "[1]"),
        ("extra", "x"),
        ("extra", "[]"),
        ("extra", '{"model": "other"}'),
        ("extra", '{"stream": false}'),
        ("extra", '{"messages": []}'),
        ("extra", "[" * 100_000),
        ("hermes_session_id", "s1"),
    ],
)
def test_metadata_that_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(RunnerFailed) as failed:
        parse_options({name: text})
    assert failed.value.code == "invalid_option"
    assert failed.value.message.startswith(f"metadata.{name}: ")
    assert len(failed.value.message) < 300


def test_a_misspelt_option_is_guessed() -> None:
    with pytest.raises(RunnerFailed, match=r"temperature\?"):
        parse_options({"temprature": "1"})


def test_the_requests_limit_counts_before_the_operators() -> None:
    assert Options(max_output_tokens=5).limited_to(9).max_output_tokens == 5
    assert Options().limited_to(9).max_output_tokens == 9
    assert Options().limited_to(0).max_output_tokens is None


def test_all_apis_are_built() -> None:
    for api in APIS:
        assert _body(_build(api, WITHOUT_STOP))
