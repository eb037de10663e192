"""``runcast input``, and answering while a run is followed: in a pipe, with JSON, and on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from broker.api import Broker
from broker.records import OpenAsk
from ops.asks import answered_line, meaning, numbered, shown, what_is_allowed
from ops.inline import reads_lines
from tests.ops.conftest import COMMAND, Command, Process

ASKS = "script=tokens=2 ask=1 question=2"


class Screen:
    """The command on a terminal: ``until`` waits for a text behind the last one, ``type`` is the keyboard."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.popen = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.seen = ""
        self._at = 0

    def until(self, text: str, timeout: float = 30.0) -> None:
        end = time.monotonic() + timeout
        while (found := self.seen.find(text, self._at)) < 0:
            ready, _, _ = select.select([self._master], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no {text!r} in {self.seen!r}"
            assert self._read(), f"it ended without {text!r}: {self.seen!r}"
        self._at = found + len(text)

    def _read(self) -> bool:
        try:
            chunk = os.read(self._master, 4096)
        except OSError:  # how Linux says that nobody has the other end any more
            return False
        self.seen += re.sub(r"\x1b\[[0-9;]*m", "", chunk.decode(errors="replace")).replace("\r", "")
        return bool(chunk)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        return self.popen.wait(30)

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        os.close(self._master)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def screens(runcast: Command) -> Iterator[list[Screen]]:
    made: list[Screen] = []
    yield made
    for screen in made:
        screen.close()


def on_screen(screens: list[Screen], runcast: Command, *arguments: str) -> Screen:
    screens.append(Screen(runcast.environment, *arguments))
    return screens[-1]


def asking(runcast: Command, run_id: str, script: str = ASKS, kind: str = "approval") -> OpenAsk:
    """The run's open ask, once there is one of that kind; the run is started where there is none yet."""

    async def wait(broker: Broker) -> OpenAsk:
        import asyncio

        async with asyncio.timeout(30):
            while True:
                asks = (await broker.runs.get(run_id)).asks
                if asks and asks[0].kind == kind:
                    return asks[0]
                await asyncio.sleep(0.02)

    if script:
        submit = ("run", "x", "--runner", "scripted", "--metadata", script, "--run-id", run_id, "--detach")
        assert runcast(*submit).code == 0
    return runcast.broker(wait)


# In a pipe.


def test_what_is_asked_is_listed_and_answered(runcast: Command, worker: Process) -> None:
    ask = asking(runcast, "r1")
    listed = runcast("input", "r1")
    assert listed.code == 0
    what = "rm -rf build · The script wants to remove the folder “build”."
    assert listed.out == f"{ask.request_id}\tapproval\t{what}\tonce, session, always, deny\n"
    (pending,) = runcast("input", "r1", "--json").lines
    assert (pending["request_id"], pending["payload"]["command"]) == (ask.request_id, "rm -rf build")
    assert runcast("show", "r1", "--json").lines[0]["pending_input"] == [pending]
    assert "asks        approval: rm -rf build" in runcast("show", "r1").out
    answered = runcast("input", "r1", "approve", "--request", ask.request_id, "--json")
    told = {"run_id": "r1", "request_id": ask.request_id, "answer": "once", "status": "running"}
    assert (answered.code, answered.lines) == (0, [told])
    question = asking(runcast, "r1", script="", kind="question")
    assert runcast("input", "r1", "--json", "--request", "other").lines == []
    quiet = runcast("input", "r1", "any text at all")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert runcast("tail", "r1").out == "w1 [approval: once] w2 [answer: any text at all] \n"
    late = runcast("input", "r1", "more", "--request", question.request_id)
    assert late.code == 6
    assert "any text at all" in late.err
    assert runcast("input", "r1").out == ""


def test_answers_that_cannot_be_taken(runcast: Command, worker: Process) -> None:
    assert runcast("input", "none").code == 3
    ask = asking(runcast, "r1")
    wrong = runcast("input", "r1", "maybe")
    assert wrong.code == 2
    assert "once, session, always, deny" in wrong.err
    assert runcast("input", "r1", "once", "--request", "other").code == 3
    assert runcast("input", "r1", "once", "--request", "a b").code == 2
    assert runcast("cancel", "r1").code == 0
    runcast("tail", "r1")
    stopped = runcast("input", "r1", "once", "--request", ask.request_id)
    assert (stopped.code, "no longer waits" in stopped.err) == (6, True)
    ended = runcast("input", "r1", "once")
    assert (ended.code, "has ended as cancelled" in ended.err) == (6, True)
    runcast("run", "x", "--runner", "nobody", "--run-id", "r2", "--detach")


def test_a_run_that_asks_nothing(runcast: Command) -> None:
    assert runcast("run", "x", "--run-id", "r1", "--detach").code == 0
    result = runcast("input", "r1", "once")
    assert (result.code, result.err) == (6, "runcast: run 'r1' is queued and asks nothing\n")
    assert (runcast("input", "r1").code, runcast("input", "r1").out) == (0, "")


def test_of_several_one_is_named(runcast: Command) -> None:
    async def two(broker: Broker) -> None:
        from broker.requests import RunInput, RunRequest

        await broker.runs.create(RunRequest(input=RunInput(message="x")), run_id="r1", enqueue=False)
        await broker.runs.claim("r1", 1, "me")
        for name in ("a", "b"):
            payload = {"command": f"cmd {name}"}
            more = {"choices": ("once", "deny"), "timeout": 60.0}
            await broker.runs.asks.ask("r1", "me", 1, name, kind="approval", payload=payload, **more)

    runcast.broker(two)
    unclear = runcast("input", "r1", "once")
    assert unclear.code == 2
    assert "--request a  cmd a" in unclear.err
    assert "--request b  cmd b" in unclear.err
    assert len(runcast("input", "r1").out.splitlines()) == 2
    assert runcast("input", "r1", "once", "--request", "b").code == 0
    assert runcast("input", "r1", "deny").code == 0, "one is left: no need to name it"


def test_whoever_follows_in_a_pipe_is_told_how_to_answer(runcast: Command, worker: Process) -> None:
    process = runcast.start("run", "x", "--runner", "scripted", "--metadata", ASKS, "--run-id", "r1")
    process.until("r1 asks for an answer (approval): rm -rf build", err=True)
    process.until("answer it (once, session, always, deny): runcast input r1 ANSWER", err=True)
    assert runcast("input", "r1", "deny").code == 0
    process.until("answer it (red, green, blue, or any text)", err=True)
    assert runcast("input", "r1", "red").code == 0
    assert process.end().out == "w1 [approval: deny] w2 [answer: red] \n"
    again = runcast("tail", "r1")
    assert (again.out, again.err) == ("w1 [approval: deny] w2 [answer: red] \n", "")


def test_json_lines_stay_json_lines(runcast: Command, worker: Process) -> None:
    process = runcast.start("run", "x", "--runner", "scripted", "--metadata", ASKS, "--run-id", "r1", "--json")
    process.until("approval.requested")
    assert runcast("input", "r1", "deny").code == 0
    process.until("question.asked")
    assert runcast("input", "r1", "red").code == 0
    result = process.end()
    assert result.err == ""
    names = [json.loads(line).get("name") for line in result.out.splitlines()]
    assert [n for n in names if n in ("approval.requested", "question.asked")] == [
        "approval.requested",
        "question.asked",
    ]
    assert names.count("input.answered") == 2


def test_approvals_are_asked_for_with_an_option(runcast: Command, worker: Process) -> None:
    submit = ("--runner", "scripted", "--metadata", "script=tokens=2 tool=1", "--approvals", "ask")
    process = runcast.start("run", "x", *submit, "--run-id", "r1", "--json")
    process.until("approval.requested")
    assert runcast("show", "r1", "--json").lines[0]["input"]["approvals"] == "ask"
    assert runcast("input", "r1", "false").code == 2, "a word, as it is"
    assert runcast("input", "r1", "reject").code == 0
    assert "tool.failed" in process.end().out


def test_runs_that_asked_are_exported_imported_and_replayed(runcast: Command, worker: Process) -> None:
    for kind, answer in (("approval", "once"), ("question", "blue")):
        asking(runcast, "r1", ASKS if kind == "approval" else "", kind)
        assert runcast("input", "r1", answer).code == 0
    text = "w1 [approval: once] w2 [answer: blue] \n"
    assert runcast("tail", "r1").out == text
    lines = runcast("export", "r1").out
    assert runcast.piped(lines, "import", "--run", "r2").code == 0
    assert runcast("replay", "r1", "--into", "r3", "--speed", "0").code == 0
    for copy in ("r2", "r3"):
        copied = runcast("tail", copy)
        assert (copied.code, copied.out, copied.err) == (0, text, "")
        assert runcast("input", copy).out == ""
    names = [line["data"].get("name") for line in runcast("export", "r3").lines]
    assert names.count("input.answered") == 2


# On a terminal.


def test_what_a_run_asks_is_answered_where_it_is_followed(
    runcast: Command, worker: Process, screens: list[Screen]
) -> None:
    screen = on_screen(screens, runcast, "run", "x", "--runner", "scripted", "--metadata", ASKS)
    screen.until("? approval: rm -rf build")
    screen.until("answers: once, session, always, deny")
    screen.until("type an answer: 1 once  2 session  3 always  4 deny")
    screen.type("perhaps\n")
    screen.until("the answers are once, session, always, deny")
    screen.type("yes\n")
    screen.until("? answered: once")
    screen.until("? question: Which colour?")
    screen.until("type an answer: 1 red  2 green  3 blue  or any text")
    screen.type("3\n")
    screen.until("? answered: blue")
    screen.until("completed")
    assert screen.end() == 0


def test_what_was_typed_before_it_was_asked_is_no_answer(
    runcast: Command, worker: Process, screens: list[Screen]
) -> None:
    script = "script=tokens=3 silence=1.5 ask=2"
    screen = on_screen(screens, runcast, "run", "x", "--runner", "scripted", "--metadata", script)
    screen.until("w1 ")
    screen.type("once\n")
    screen.until("type an answer")
    screen.type("deny\n")
    screen.until("? answered: deny")
    assert screen.end() == 0


def test_an_answer_from_elsewhere_is_seen(runcast: Command, worker: Process, screens: list[Screen]) -> None:
    ask = asking(runcast, "r1", "script=tokens=1 ask=1")
    screen = on_screen(screens, runcast, "tail", "r1")
    screen.until("type an answer")
    assert runcast("input", "r1", "always", "--request", ask.request_id).code == 0
    screen.until("? answered: always")
    assert screen.end() == 0
    again = on_screen(screens, runcast, "tail", "r1")
    assert again.end() == 0
    assert "? answered: always" in again.seen
    assert "type an answer" not in again.seen, "of an ended run it is history"


def test_ctrl_c_leaves_a_run_that_asks(runcast: Command, worker: Process, screens: list[Screen]) -> None:
    screen = on_screen(screens, runcast, "run", "x", "--runner", "scripted", "--metadata", ASKS, "--run-id", "r1")
    screen.until("type an answer")
    screen.type("\x03")
    screen.until("left; r1 goes on")
    assert screen.end() == 130
    assert runcast("cancel", "r1").code == 0


def test_the_command_asks_for_the_answer(runcast: Command, worker: Process, screens: list[Screen]) -> None:
    asking(runcast, "r1")
    screen = on_screen(screens, runcast, "input", "r1")
    screen.until("? approval: rm -rf build")
    screen.until("left")
    screen.until("1 once  2 session  3 always  4 deny >")
    screen.type("9\n")
    screen.until("the answers are once, session, always, deny")
    screen.until(">")
    screen.type("NO\n")
    screen.until("answered: deny")
    assert screen.end() == 0
    asking(runcast, "r1", script="", kind="question")
    screen = on_screen(screens, runcast, "input", "r1")
    screen.until("1 red  2 green  3 blue  or any text >")
    assert runcast("input", "r1", "green").code == 0
    screen.type("too late\n")
    assert screen.end() == 0
    assert "'green'" in screen.seen
    screen = on_screen(screens, runcast, "input", "r1")
    screen.until("nothing is asked")
    assert screen.end() == 0


def test_ctrl_c_answers_nothing(runcast: Command, worker: Process, screens: list[Screen]) -> None:
    asking(runcast, "r1")
    screen = on_screen(screens, runcast, "input", "r1")
    screen.until("> ")
    for _ in range(10):  # one that comes between the prompt and Python's wait for input is not noticed
        screen.popen.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            screen.popen.wait(3)
            break
    assert screen.end() == 130
    assert asking(runcast, "r1", script="").kind == "approval"


# Pure.


def ask(*choices: str, kind: str = "approval", free: bool = False) -> OpenAsk:
    return OpenAsk(
        request_id="q", kind=kind, payload={}, choices=choices, free=free, asked_at=0, expires_at=1, attempt=1
    )


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("once", "once"),
        (" Once ", "once"),
        ("1", "once"),
        ("2", "deny"),
        ("0", None),
        ("3", None),
        ("²", None),
        ("1" * 5_000, None),
        ("y", "once"),
        ("YES", "once"),
        ("reject", "deny"),
        ("", None),
        ("o", None),
    ],
)
def test_what_a_typed_line_means(line: str, answer: str | None) -> None:
    assert meaning(line, ask("once", "deny")) == answer


def test_choices_that_look_like_numbers_and_free_text() -> None:
    assert meaning("2", ask("2", "1", kind="question")) == "2"
    assert meaning("yes", ask("a", kind="question")) is None
    assert meaning("yes", ask("a", kind="question", free=True)) == "yes"
    assert meaning(" \n", ask(kind="question", free=True)) is None
    assert meaning("n", ask("allow")) is None
    assert numbered((), True) == what_is_allowed((), True) == "any text"


def test_how_an_ask_is_shown() -> None:
    fields = {"ts": 1, "name": "x", "request_id": "q", "choices": [], "free": True, "expires_at": 3, "timeout_s": 2}
    payload = {"description": "d\x1b[2J", "command": "a\nb", "pattern": "p", "empty": "", "none": None}
    assert shown({**fields, **payload}) == ["a", "b", "d[2J", "pattern: p"]
    assert shown({"command": "x" * 3_000, "truncated_bytes": 7})[0].endswith("(1000 characters more)")
    assert shown({"command": "x", "truncated_bytes": 7})[-1] == "(7 bytes more are not shown)"
    assert answered_line({"answer": "x" * 200, "how": "answered"}) == "answered: " + "x" * 99 + "…"
    assert answered_line({"answer": "deny", "how": "expired"}) == "nobody answered in time: deny"
    assert answered_line({"answer": "deny", "how": "stopped"}) == "no longer asked: deny"


def test_under_a_test_nobody_types() -> None:
    assert not reads_lines()
