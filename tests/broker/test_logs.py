"""Log records: what they are about, how they are written, what is never written."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import Iterator
from logging.config import dictConfig
from typing import Any

import pytest

from broker.logs import JsonLines, TextLines, bind, bound, current, logging_config, unbind, unbound
from broker.redaction import MARK

log = logging.getLogger("tests.logs")


@pytest.fixture
def root() -> Iterator[None]:
    """The root logger's handlers and levels, as they were."""
    names = ["", "uvicorn", "uvicorn.error", "httpx", "httpcore", "urllib3"]
    loggers = [logging.getLogger(name) for name in names]
    before = [(one, list(one.handlers), one.level, one.propagate) for one in loggers]
    yield
    for one, handlers, level, propagate in before:
        one.handlers[:], one.level, one.propagate = handlers, level, propagate


def record(message: str, *arguments: Any, error: bool = False, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("runcast.tests", logging.WARNING, "path", 1, message, arguments, None)
    if error:
        try:
            raise ValueError("with password=hunter22 in it")
        except ValueError as raised:
            made.exc_info = (type(raised), raised, raised.__traceback__)
    made.__dict__.update(extra)
    return made


def line(made: logging.LogRecord, **options: Any) -> dict[str, Any]:
    text = JsonLines(**options).format(made)
    assert "\n" not in text
    parsed: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return parsed


def test_a_record_is_about_what_is_bound() -> None:
    assert current() == {}
    with bound(run_id="r1", attempt=2, session_id=None):
        token = bind(request_id="q")
        assert line(record("hello %s", "you")).items() >= {"run_id": "r1", "attempt": 2, "request_id": "q"}.items()
        unbind(token)
        assert "request_id" not in line(record("hello"))
        assert "session_id" not in line(record("hello")), "None binds nothing"
    assert "run_id" not in line(record("hello"))


def test_a_line_has_its_fields() -> None:
    said = line(record("hello %s", "you", runner="hermes", color_message="\x1b[1m"), service="here")
    assert said.pop("ts").endswith("+00:00")
    assert said.pop("pid") > 0
    expected = {"level": "warning", "logger": "runcast.tests", "message": "hello you", "service": "here"}
    assert said == {**expected, "runner": "hermes"}


def test_whatever_a_record_brings_the_line_is_json() -> None:
    lone = "\ud800 lone, \x00 nul, \n newline,   separator"
    said = line(record("%s", lone, number=float("nan"), thing=object(), deep={"a": {1, 2}}, level="mine"))
    assert said["message"] == lone
    assert said["level"] == "warning", "what is ours stays ours"
    assert said["number"] == "nan"


def test_errors_are_one_string_without_secrets() -> None:
    said = line(record("failed", error=True))
    assert said["exception"].startswith("Traceback")
    assert MARK in said["exception"]
    assert "hunter22" not in json.dumps(said)


def test_secrets_go_from_every_field_and_leave_json_behind() -> None:
    known = ["my-own-secret"]
    said = line(record('token="abcdefgh"', header="my-own-secret", more={"k": "my-own-secret"}), secrets=known)
    assert said["message"] == f'token="{MARK}"'
    assert "my-own-secret" not in json.dumps(said)
    assert "my-own-secret" not in TextLines(secrets=known).format(record("x my-own-secret", error=True))


def test_text_is_for_people() -> None:
    with bound(run_id="r1", attempt=1):
        text = TextLines().format(record("hello"))
        assert text.endswith(" WARNING runcast.tests: hello [run_id=r1 attempt=1]")
        assert "[run_id=r1 attempt=1]\nTraceback" in TextLines().format(record("hello", error=True))
    assert TextLines().format(record("hello")).endswith(": hello")


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_configuration_travels_to_processes_and_counts_for_all_loggers(
    format: Any, root: None, capfd: pytest.CaptureFixture[str]
) -> None:
    config = pickle.loads(pickle.dumps(logging_config("info", format, secrets=["my-own-secret"], service="s")))
    dictConfig(config)
    logging.getLogger("runcast.gateway").info("ours my-own-secret")
    logging.getLogger("uvicorn.error").info("uvicorn's")
    logging.getLogger("httpx").info("GET https://host/?key=…")
    logging.getLogger("runcast.gateway").debug("too little")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert MARK in lines[0]
    assert "uvicorn's" in lines[1]
    assert format == "text" or json.loads(lines[1])["service"] == "s"


async def test_tasks_inherit_what_is_bound_unless_they_serve_everybody() -> None:
    async def seen() -> dict[str, Any]:
        return dict(current())

    with bound(request_id="q"):
        theirs, everybodys = asyncio.create_task(seen()), asyncio.create_task(seen(), context=unbound())
    assert (await theirs, await everybodys) == ({"request_id": "q"}, {})
