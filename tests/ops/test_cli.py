"""The command's surface: names, options, messages. No store is asked."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from broker.settings import Settings
from gateway.formats import FORMATS
from ops.cli import cli
from ops.exits import Exit
from tests.ops.conftest import Command

DOCS = Path(__file__).parents[2] / "docs" / "commands.md"
NAMES = [
    *("up", "serve", "worker", "run", "tail", "replay", "runs", "show", "input", "task"),
    *("cancel", "artifacts", "export", "import", "merge", "budget", "audit", "plan", "doctor"),
]


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    assert None not in found.values()
    return {name: command for name, command in found.items() if command}


def test_every_command_is_there_and_takes_a_store() -> None:
    found = commands()
    assert list(found) == NAMES
    storeless = {name for name, parts in found.items() if not all(takes_a_store(part) for part in parts_of(parts))}
    said = re.search(r"Every command but (.*?), which ask no store, takes `--redis URL`", DOCS.read_text())
    assert said
    assert storeless == set(re.findall(r"`(\w+)`", said[1]))


def parts_of(command: click.Command) -> list[click.Command]:
    return list(command.commands.values()) if isinstance(command, click.Group) else [command]


def takes_a_store(command: click.Command) -> bool:
    return any("--redis" in parameter.opts for parameter in command.params)


def test_every_option_has_help() -> None:
    asked = [(name, part) for name, command in commands().items() for part in [command, *parts_of(command)]]
    for name, part in [("runcast", cli), *asked]:
        for option in part.params:
            if isinstance(option, click.Option):
                assert option.help, f"{option.opts[0]} of {name} {part.name}"


@pytest.mark.parametrize(("name", "setting"), [("worker", "concurrency"), ("up", "port"), ("plan", "run_ttl")])
def test_what_a_setting_decides_is_said_so(runcast: Command, name: str, setting: str) -> None:
    default = Settings.model_fields[setting].default
    assert f"[default: RUNCAST_{setting.upper()}, else {default}" in " ".join(runcast(name, "--help").out.split())


def test_every_exit_code_is_told(runcast: Command) -> None:
    documented = re.findall(r"^\| (\d+) \|", DOCS.read_text(), re.MULTILINE)
    told = " ".join(runcast("--help").out.split()).partition("Exit codes: ")[2].partition("Options:")[0]
    assert [int(code) for code in documented] == list(Exit)
    assert [int(code) for code in re.findall(r"(?:^|· )(\d+) ", told)] == list(Exit)


def test_every_format_of_replay_is_told(runcast: Command) -> None:
    told = " ".join(runcast("replay", "--help").out.split())
    assert f"a wire format: {', '.join(FORMATS)}." in told
    [documented] = re.findall(r"or a wire format: (.*?) write", DOCS.read_text())
    assert re.findall(r"`(\w+)`", documented) == list(FORMATS)


def test_every_command_and_option_is_documented() -> None:
    text = DOCS.read_text()
    for name, command in commands().items():
        section = re.search(rf"^## `runcast {name}\b.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, f"docs/commands.md has no section of {name}"
        for parameter in (parameter for part in parts_of(command) for parameter in part.params):
            if (
                isinstance(parameter, click.Option)
                and not parameter.hidden
                and parameter.opts[0] not in ("--redis", "--json")
            ):
                assert parameter.opts[0] in section[0], f"{parameter.opts[0]} of {name} is not documented"


def test_help_loads_no_command() -> None:
    show = "try: main(['--help'])\nexcept SystemExit: print('fastapi' in sys.modules)"
    code = f"import sys; from ops.cli import main\n{show}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(runcast: Command, name: str) -> None:
    result = runcast(name, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: runcast {name}")


def test_version(runcast: Command) -> None:
    assert runcast("--version").out == f"runcast, version {version('runcast')}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fly"], "No such command 'fly'"),
        (["run"], "Missing argument 'PROMPT'"),
        (["run", "x", "--modes", "messages,colours"], "the modes are messages, tools, usage, cost, events, final"),
        (["run", "x", "--metadata", "novalue"], "NAME=VALUE"),
        (["run", "x", "--max-turns", "0"], "--max-turns"),
        (["run", "  "], "the message is empty"),
        (["run", "x", "--runner", "no such"], "runner"),
        (["tail", "x", "--from", "yesterday"], "now"),
        (["tail", "x", "--from", "9" * 20], "seq"),
        (["replay", "x", "--format", "morse"], "the formats are"),
        (["replay", "x", "--speed", "-1"], "--speed"),
        (["task", "approve", "x"], "give a step, or --up-to"),
        (["task", "approve", "x", "2", "--up-to", "low"], "give a step or --up-to, not both"),
        (["replay", "x", "--into", "y", "--json"], "--into"),
        (["show", "a b"], "run_id"),
        (["runs", "--status", "odd"], "queued"),
        (["runs", "--redis", "http://store"], "redis://"),
        (["serve", "--port", "70000"], "--port"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_allowed(runcast: Command, arguments: list[str], says: str) -> None:
    result = runcast(*arguments)
    assert result.code == 2
    assert says in result.err
    assert "Traceback" not in result.err


def test_a_wrong_setting_is_named(runcast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNCAST_PORT", "many")
    result = runcast("runs")
    assert result.code == 2
    assert "RUNCAST_PORT" in result.err


def test_an_absent_store_exits_4(runcast: Command) -> None:
    result = runcast("runs", "--redis", "redis://127.0.0.1:1/0")
    assert result.code == 4
    assert "127.0.0.1:1" in result.err


def test_a_password_is_never_shown(runcast: Command) -> None:
    for url in ("redis://:s3cret@127.0.0.1:1/0", "redsi://:s3cret@host"):
        assert "s3cret" not in runcast("runs", "--redis", url).err


def test_the_store_may_be_named_ahead_of_the_command(runcast: Command) -> None:
    assert runcast("--redis", "redis://127.0.0.1:1/0", "runs").code == 4


@pytest.mark.parametrize("given", ["nan", "inf", "-inf", "24h", ""])
@pytest.mark.parametrize(
    "command", [("plan", "--viewers", "1", "--runs", "1", "--rate"), ("replay", "r", "--speed"), ("run", "--deadline")]
)
def test_what_is_no_number_is_refused(runcast: Command, command: tuple[str, ...], given: str):
    result = runcast(*command, given)
    assert result.code == 2
    assert f"{given!r} is no number" in result.err
