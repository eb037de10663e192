"""Where a request goes, and which key goes with it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from workers.llm.endpoints import VENDORS, Endpoint, configured, endpoint_of, root
from workers.llm.settings import APIS, LlmSettings, VendorKeys
from workers.providers import ADAPTERS
from workers.runner import RunnerFailed

OPENAI = "sk-openai-key"
OWN = "sk-own-key"


def _settings(**values: Any) -> LlmSettings:
    return LlmSettings(**values)


def _keys(**values: str) -> VendorKeys:
    return VendorKeys(**{name: SecretStr(value) for name, value in values.items()})


def _key(endpoint: Endpoint) -> str:
    return endpoint.key.get_secret_value()


@pytest.mark.parametrize(
    ("api", "base_url", "expected"),
    [
        ("openai.chat", "http://h:8000", "http://h:8000/v1"),
        ("openai.chat", "http://h:8000/", "http://h:8000/v1"),
        ("openai.chat", "http://h/v1", "http://h/v1"),
        ("openai.chat", "http://h/v1/", "http://h/v1"),
        ("openai.chat", "https://h/openai/v1", "https://h/openai/v1"),
        ("openai.chat", "https://h/api", "https://h/api"),
        ("openai.chat", "https://h/chat/completions", "https://h"),
        ("openai.chat", "https://h/v1/chat/completions", "https://h/v1"),
        ("openai.chat", "https://h/deployments/d?api-version=1", "https://h/deployments/d?api-version=1"),
        ("openai.responses", "https://h", "https://h/v1"),
        ("openai.responses", "https://h/v1/responses", "https://h/v1"),
        ("anthropic.messages", "https://h", "https://h/v1"),
        ("anthropic.messages", "https://h/v1", "https://h/v1"),
        ("anthropic.messages", "https://h/anthropic", "https://h/anthropic/v1"),
        ("anthropic.messages", "https://h/anthropic/v1/messages", "https://h/anthropic/v1"),
        ("google.generateContent", "https://h", "https://h/v1beta"),
        ("google.generateContent", "https://h/v1", "https://h/v1"),
        (
            "google.generateContent",
            "https://h/v1/projects/p/publishers/google",
            "https://h/v1/projects/p/publishers/google",
        ),
        ("mistral.chat", "https://h", "https://h/v1"),
        ("cohere.chat", "https://h", "https://h/v2"),
        ("cohere.chat", "https://h/v2/chat", "https://h/v2"),
        ("ollama.chat", "http://h:11434", "http://h:11434/api"),
        ("ollama.chat", "http://h:11434/v1", "http://h:11434/api"),
        ("ollama.chat", "http://h:11434/api/chat", "http://h:11434/api"),
        ("ollama.chat", "http://h/proxy", "http://h/proxy/api"),
    ],
)
def test_a_base_url_as_people_write_it(api: str, base_url: str, expected: str) -> None:
    assert root(api, base_url) == expected
    if "chat/completions" not in base_url:
        assert root(api, expected) == expected


def test_without_a_base_url_it_is_the_vendors_own() -> None:
    keys = _keys(openai_api_key=OPENAI)
    endpoint = endpoint_of(None, _settings(), keys)
    assert (endpoint.url, endpoint.api, _key(endpoint)) == ("https://api.openai.com/v1", "openai.chat", OPENAI)
    assert endpoint.seller == "https://api.openai.com/v1"


def test_the_operators_key_comes_before_the_vendors_variable() -> None:
    endpoint = endpoint_of(None, _settings(key=SecretStr(OWN)), _keys(openai_api_key=OPENAI))
    assert _key(endpoint) == OWN


@pytest.mark.parametrize(
    "base_url",
    [
        "http://127.0.0.1:8000/v1",
        "http://api.openai.com/v1",
        "https://api.openai.com:8443/v1",
        "https://evil.example/v1",
    ],
)
def test_a_vendors_key_goes_to_no_other_place(base_url: str) -> None:
    endpoint = endpoint_of(None, _settings(base_url=base_url), _keys(openai_api_key=OPENAI))
    assert _key(endpoint) == ""


def test_a_vendors_key_goes_with_its_host_whatever_the_path() -> None:
    settings = _settings(base_url="https://api.groq.com/openai/v1")
    assert _key(endpoint_of(None, settings, _keys(groq_api_key="gsk-1", openai_api_key=OPENAI))) == "gsk-1"


def test_a_request_may_name_a_vendor_and_gets_its_key_alone() -> None:
    settings = _settings(
        base_url="http://127.0.0.1:1/v1", key=SecretStr(OWN), headers={"x-secret": SecretStr("s")}, model="m"
    )
    endpoint = endpoint_of("openai", settings, _keys(openai_api_key=OPENAI))
    assert (endpoint.url, _key(endpoint), endpoint.headers) == ("https://api.openai.com/v1", OPENAI, {})
    # The operator's model is one of his own endpoint.
    assert endpoint.model == ""


def test_a_request_that_names_the_operators_own_endpoint_gets_its_key() -> None:
    settings = _settings(api="anthropic.messages", key=SecretStr(OWN), model="claude-sonnet-4-5")
    for provider in (None, "anthropic", "anthropic.messages"):
        endpoint = endpoint_of(provider, settings, _keys())
        assert (_key(endpoint), endpoint.model) == (OWN, "claude-sonnet-4-5")


@pytest.mark.parametrize(("provider", "variable"), [("openai", "OPENAI_API_KEY"), ("google", "GEMINI_API_KEY")])
def test_a_vendor_without_its_key_is_not_asked(provider: str, variable: str) -> None:
    with pytest.raises(RunnerFailed) as failed:
        endpoint_of(provider, _settings(base_url="http://127.0.0.1:1/v1"), _keys())
    assert failed.value.code == "not_configured"
    assert variable in failed.value.message


def test_the_second_variable_counts_where_the_first_is_empty() -> None:
    assert _key(endpoint_of("google", _settings(), _keys(google_api_key="g"))) == "g"
    assert _key(endpoint_of("cohere", _settings(), _keys(cohere_api_key="c"))) == "c"
    assert _key(endpoint_of("ollama", _settings(), _keys())) == ""


def test_an_unknown_provider_lists_the_known_ones() -> None:
    with pytest.raises(RunnerFailed) as failed:
        endpoint_of("opnai", _settings(key=SecretStr(OWN)), _keys())
    assert failed.value.code == "unknown_provider"
    assert all(name in failed.value.message for name in VENDORS)


def test_every_vendor_has_an_adapter_and_every_api_a_vendor() -> None:
    assert {vendor.api for vendor in VENDORS.values()} == set(APIS) == set(ADAPTERS) - {"bedrock.converse"}
    for api in APIS:
        assert configured(_settings(api=api), _keys()).url.startswith(("https://", "http://127.0.0.1"))


# Settings.


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LLM_API": "anthropic.messages",
        "LLM_KEY": OWN,
        "LLM_BASE_URL": "",
        "LLM_RETRIES": "5",
        "LLM_HEADERS": '{"x-team": "blue"}',
        "MISTRAL_API_KEY": "m-key",
    }.items():
        monkeypatch.setenv(name, value)
    settings, keys = LlmSettings(), VendorKeys()
    assert (settings.api, settings.retries, settings.base_url) == ("anthropic.messages", 5, "")
    assert settings.headers["x-team"].get_secret_value() == "blue"
    assert _key(endpoint_of("mistral", settings, keys)) == "m-key"


@pytest.mark.parametrize(
    "values",
    [
        {"api": "openai"},
        {"api": "bedrock.converse"},
        {"base_url": "localhost:8000"},
        {"base_url": "ftp://h"},
        {"base_url": "https://h:port"},
        {"base_url": "https://sk-secret-1@h/v1"},
        {"key": "sk-secret-1\n"},
        {"key": "sk-secret-1 "},
        {"key": "sk-secret-1\x7f"},
        {"key": "sk-secret-1é"},
        {"headers": {"x y": "sk-secret-1"}},
        {"headers": {"Host": "sk-secret-1"}},
        {"headers": {"x-a": "sk-secret-1\r\nx-b: 1"}},
        {"retries": -1},
        {"connect": 0},
    ],
)
def test_wrong_settings_are_refused_and_no_secret_is_quoted(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        LlmSettings(**values)
    assert "sk-secret-1" not in str(refused.value) + repr(refused.value)


def test_a_vendors_key_that_cannot_be_sent_is_named_and_not_quoted() -> None:
    with pytest.raises(RunnerFailed) as failed:
        endpoint_of("openai", _settings(), _keys(openai_api_key="sk-secret-1\nx"))
    assert failed.value.code == "not_configured"
    assert "OPENAI_API_KEY" in failed.value.message
    assert "sk-secret-1" not in failed.value.message


def test_no_key_is_in_a_repr() -> None:
    settings = _settings(key=SecretStr(OWN), headers={"x-secret": SecretStr(OWN)})
    keys = _keys(openai_api_key=OPENAI)
    shown = f"{settings!r} {keys!r} {configured(settings, keys)!r} {configured(settings, keys)} {settings.model_dump()}"
    assert OWN not in shown
    assert OPENAI not in shown
