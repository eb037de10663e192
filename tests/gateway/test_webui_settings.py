"""The WebUI's settings: their names, how they are read, and that docs/webui.md has them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from broker.settings import Settings
from gateway.app import create_app
from gateway.webui.settings import WebuiSettings

DOCS = Path(__file__).parents[2] / "docs" / "webui.md"
NAMES = {str(field.validation_alias) for field in WebuiSettings.model_fields.values()}


@pytest.fixture(autouse=True)
def nobodys_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["RUNCAST_SHOW_CLI_SESSIONS", "HERMES_WEBUI_SSE_CHUNKED"])
def test_the_webuis_four_words_are_true_and_all_others_are_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field = {"RUNCAST_SHOW_CLI_SESSIONS": "show_cli_sessions", "HERMES_WEBUI_SSE_CHUNKED": "sse_chunked"}[name]
    assert getattr(WebuiSettings(), field) is False
    for value, meant in [("1", True), ("true", True), ("YES", True), (" on ", True)] + [
        (other, False) for other in ("", "0", "no", "off", "false", "2", "enabled", "maybe")
    ]:
        monkeypatch.setenv(name, value)
        assert getattr(WebuiSettings(), field) is meant, value


def test_the_home_is_hermes_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert WebuiSettings().hermes_home == Path.home() / ".hermes"
    monkeypatch.setenv("HERMES_HOME", "~/elsewhere")
    assert WebuiSettings().hermes_home == Path.home() / "elsewhere"
    monkeypatch.setenv("HERMES_HOME", "")
    assert WebuiSettings().hermes_home == Path.home() / ".hermes"


def test_a_password_is_stripped_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WebuiSettings().password is None
    monkeypatch.setenv("RUNCAST_WEBUI_PASSWORD", "  hidden thing\n")
    settings = WebuiSettings()
    assert settings.password is not None
    assert settings.password.get_secret_value() == "hidden thing"
    assert "hidden" not in repr(settings)
    monkeypatch.setenv("RUNCAST_WEBUI_PASSWORD", " \n")
    assert WebuiSettings().password is None


@pytest.mark.parametrize(("name", "value"), [("RUNCAST_WATCH_INTERVAL", "0"), ("RUNCAST_LOGIN_TTL", "5")])
def test_what_cannot_be_meant_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match=name):
        WebuiSettings()


def test_every_setting_is_documented_with_its_default() -> None:
    def shown(value: Any) -> str:
        return "" if value is None else str(value).replace(str(Path.home()), "~")

    section = DOCS.read_text().partition("## Settings")[2]
    documented = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*?) ?\|", section, re.MULTILINE))
    fields = WebuiSettings.model_fields.values()
    assert documented == {
        str(field.validation_alias): shown(field.get_default(call_default_factory=True)) for field in fields
    }


def test_every_address_is_in_the_table_and_no_other_is() -> None:
    table = DOCS.read_text().partition("## Endpoints")[2].partition("\n## ")[0]
    documented = {path.replace("{id}", "{session_id}") for path in re.findall(r"(/api/[a-z_{}/]+)", table)}
    ahead = {"/api/chat/stream"}  # it is served before the routes are looked at
    assert documented == {path for path in paths() if path.startswith("/api/")} | ahead


def paths() -> set[str]:
    found: set[str] = set()
    routes: list[Any] = list(create_app(Settings(redis_url="memory:docs")).api.routes)
    while routes:
        route = routes.pop()
        routes.extend(getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", []))
        found.add(getattr(route, "path", ""))
    return found
