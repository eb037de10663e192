"""The docs against what the code does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from pydantic_settings import BaseSettings

import broker
from broker.items import CONTROL_EVENTS, TYPES, Mode
from broker.settings import Settings
from gateway.app import create_app
from gateway.webui.settings import WebuiSettings
from tests.conftest import missing
from tests.ops.conftest import Command
from tests.servers import RedisServer
from workers.hermes.settings import HermesSettings
from workers.llm.settings import LlmSettings, VendorKeys
from workers.remote.settings import RemoteSettings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ROOMS = ("broker", "gateway", "workers")
SCRIPTS = Path(broker.__file__).parent / "scripts"


def table(text: str, prefix: str) -> dict[str, str]:
    """Variable → documented default."""
    return dict(re.findall(rf"^\| `({prefix}_[A-Z_]+)` \| (.*?) ?\|", text, re.MULTILINE))


def defaults(settings: type[BaseSettings], prefix: str) -> dict[str, str]:
    def shown(value: Any) -> str:
        return "" if value is None else str(value).replace(str(Path.home()), "~")

    fields = settings.model_fields.items()
    return {f"{prefix}_{name.upper()}": shown(field.get_default(call_default_factory=True)) for name, field in fields}


def test_the_table_of_settings_is_complete_and_right() -> None:
    documented = table((DOCS / "operations.md").read_text(), "RUNCAST")
    assert documented == {**defaults(Settings, "RUNCAST"), **aliased(WebuiSettings, "RUNCAST_")}


def aliased(settings: type[BaseSettings], prefix: str) -> dict[str, str]:
    fields = {str(field.validation_alias): field.default for field in settings.model_fields.values()}
    return {name: "" if value is None else str(value) for name, value in fields.items() if name.startswith(prefix)}


def test_every_setting_of_every_class_is_in_a_table_of_a_page_that_operations_names() -> None:
    text = (DOCS / "operations.md").read_text()
    section = text.partition("## Settings")[2].partition("\n## ")[0]
    pages = [text, *((DOCS / page).read_text() for page in sorted(set(re.findall(r"\]\(([a-z-]+\.md)#", section))))]
    rows = "\n".join(re.findall(r"^\|.*", "\n".join(pages), re.MULTILINE))
    found = [settings for settings in classes(BaseSettings) if settings.__module__.split(".")[0] in ROOMS]
    assert {Settings, WebuiSettings, HermesSettings, LlmSettings, VendorKeys, RemoteSettings} <= set(found)
    for settings in found:
        prefix = str(settings.model_config.get("env_prefix", ""))
        for name, field in settings.model_fields.items():
            variable = str(field.validation_alias or (prefix + name).upper())
            assert f"`{variable}`" in rows, f"{variable} of {settings.__name__}"


def classes(of: type[BaseSettings]) -> list[type[BaseSettings]]:
    return [settings for own in of.__subclasses__() for settings in (own, *classes(own))]


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNCAST_REDIS_URL", "")
    monkeypatch.setenv("RUNCAST_PORT", "")
    assert (Settings().redis_url, Settings().port) == ("embedded:", 8700)


def test_the_table_of_hermes_settings_is_complete_and_right() -> None:
    documented = table((DOCS / "hermes.md").read_text(), "HERMES")
    real = {name: value.removesuffix(".0") for name, value in defaults(HermesSettings, "HERMES").items()}
    assert documented == real


def test_every_metric_that_is_named_exists() -> None:
    for room in ROOMS:
        import_module(f"{room}.metrics")
    names = {sample.name for metric in REGISTRY.collect() for sample in metric.samples}
    names |= {metric.name + ("_total" if metric.type == "counter" else "") for metric in REGISTRY.collect()}
    named = set(re.findall(r"`(runcast_[a-z_]+)(?:\{[^`]*)?`", (DOCS / "operations.md").read_text()))
    assert named
    assert named <= names


def test_every_item_type_mode_and_control_frame_is_in_the_protocol() -> None:
    text = (DOCS / "protocol.md").read_text()
    for name in [*TYPES, *(CONTROL_EVENTS - {"error"}), *(str(m.name).lower() for m in Mode)]:
        assert f"`{name}`" in text or f" {name} |" in text, name


def test_modes_of_item_types_are_those_of_the_protocol() -> None:
    rows = re.findall(
        r"^\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \| ([a-z]+) \|", (DOCS / "protocol.md").read_text(), re.MULTILINE
    )
    documented = {name: mode for names, mode in rows for name in re.findall(r"`(.+?)`", names) if name in TYPES}
    assert set(documented) == set(TYPES)
    for name, mode in documented.items():
        assert Mode[mode.upper()] in TYPES[name].MODES, name


def test_the_documented_addresses_are_the_gateways() -> None:
    text = (DOCS / "protocol.md").read_text()
    paths = set(create_app(Settings(redis_url="memory:docs")).api.openapi()["paths"])
    documented = set(re.findall(r"(?<![\w.])(/(?:v1/[a-z_{}/]+|chat(?:/stream)?|healthz|readyz|metrics))", text))
    assert paths <= documented
    assert {p for p in documented if p.startswith("/v1/")} <= paths


def test_every_script_is_in_the_protocol() -> None:
    text = (DOCS / "protocol.md").read_text()
    for script in SCRIPTS.glob("*.lua"):
        assert f"`{script.stem}`" in text


@pytest.mark.parametrize("page", ["README.md", "deploy/README.md", *(f"docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https:)([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_pages_name_only_files_that_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "deploy" / "README.md", *DOCS.glob("*.md")]:
        for path in re.findall(
            r"`((?:broker|workers|gateway|ops|deploy|bench|tests)/[\w/.-]+\.\w+)`", page.read_text()
        ):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def code(page: Path, language: str) -> str:
    found = re.search(rf"<!-- tested[^>]*-->\n```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def shell_store(runcast: Command, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    monkeypatch.setenv("RUNCAST_REDIS_URL", redis7.url)
    runcast.environment["RUNCAST_REDIS_URL"] = redis7.url
    return runcast


def test_the_worker_in_shell_works(shell_store: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("redis-cli") is None or shutil.which("bash") is None:
        missing("this test needs bash and redis-cli (Debian: apt install redis-tools)")
    monkeypatch.setenv("RUNCAST_QUEUE", "shell")
    run_id = shell_store("run", "hello", "--runner", "shell", "--detach").out.strip()
    environment = {**os.environ, **shell_store.environment, "SCRIPTS": str(SCRIPTS)}
    script = code(DOCS / "workers.md", "bash")
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["OK", "OK", "3"]
    assert shell_store("tail", run_id).out == "hello from a shell\n"


def test_the_runner_of_the_docs_works() -> None:
    page = (DOCS / "workers.md").read_text()
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(compile(found[1], "workers.md", "exec"), names)  # the docs' own code
    assert names["EchoRunner"].name == "echo"


def test_the_python_of_the_readme_works(runcast: Command) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    runcast.imported("r1")
    program = found[1].replace("run_…", "r1")
    done = subprocess.run(
        [sys.executable, "-c", program], env=runcast.environment, capture_output=True, text=True, check=True, timeout=30
    )
    shown = [line.split()[:2] for line in done.stdout.splitlines()]
    assert shown == [
        ["1", "message.delta"],
        ["2", "message.delta"],
        ["3", "tool.started"],
        ["4", "tool.completed"],
        ["6", "final"],
    ]
