"""``runcast run`` and ``tail``: submit, follow, leave, cancel; on a terminal and in a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

from broker.api import Broker
from broker.records import RunRecord
from tests.ops.conftest import COMMAND, RUN, Command, Process

SCRIPTED = ("--runner", "scripted", "--metadata")
SLOW = "script=tokens=2000 rate=50"


def record(runcast: Command, run_id: str) -> RunRecord:
    return runcast.broker(lambda b: b.runs.get(run_id))


def ended(runcast: Command, run_id: str) -> RunRecord:
    async def wait(b: Broker) -> RunRecord:
        end = time.monotonic() + 20
        while not (found := await b.runs.get(run_id)).is_ended:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        return found

    return runcast.broker(wait)


class Screen:
    """The command on a pseudo-terminal."""

    def __init__(self, runcast: Command, *arguments: str) -> None:
        self.fd, child = pty.openpty()
        environment = {**runcast.environment, "TERM": "xterm-256color"}
        self.popen = subprocess.Popen([*COMMAND, *arguments], stdin=child, stdout=child, stderr=child, env=environment)
        os.close(child)
        self.seen = ""

    def until(self, text: str, timeout: float = 30.0) -> str:
        end = time.monotonic() + timeout
        while text not in self.plain:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            try:
                chunk = os.read(self.fd, 4096)
            except OSError:  # the other side is closed
                chunk = b""
            assert chunk, f"it ended without {text!r}: {self.seen!r}"
            self.seen += chunk.decode()
        return self.plain

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.seen).replace("\r\n", "\n")

    def rest(self) -> int:
        with contextlib.suppress(OSError):
            while chunk := os.read(self.fd, 4096):
                self.seen += chunk.decode()
        os.close(self.fd)
        return self.popen.wait(30)


def test_in_a_pipe_there_is_the_answer_alone(runcast: Command, worker: Process) -> None:
    result = runcast("run", "hi", *SCRIPTED, "script=tokens=4 tool=1 reasoning=2 cost=0.1")
    assert (result.code, result.out, result.err) == (0, "w1 w2 \n\nw3 w4 \n", "")


def test_json_has_one_item_a_line_in_order(runcast: Command, worker: Process) -> None:
    result = runcast("run", "hi", *SCRIPTED, "script=tokens=4 tool=1", "--json", "--session", "s1")
    assert result.code == 0
    assert [line["seq"] for line in result.lines] == list(range(1, len(result.lines) + 1))
    assert result.lines[-1]["type"] == "final"
    assert record(runcast, result.lines[0]["run_id"]).session_id == "s1"


def test_modes_choose_what_is_shown(runcast: Command, worker: Process) -> None:
    script = "script=tokens=4 tool=1"
    lines = runcast("run", "hi", *SCRIPTED, script, "--json", "--modes", "tools").lines
    assert {line["type"].split(".")[0] for line in lines} <= {"tool", "tool_call", "final"}
    assert [line["type"] for line in lines[-2:]] == ["tool.completed", "final"]
    shown = runcast("run", "hi", *SCRIPTED, script, "--modes", "tools,usage").out
    assert shown.startswith("▶ clock")
    assert "tokens in" in shown


def test_a_failed_run_exits_1_and_says_why(runcast: Command, worker: Process) -> None:
    result = runcast("run", "hi", *SCRIPTED, "script=tokens=9 fail=2")
    assert result.code == 1
    assert result.out == "w1 w2 \n"
    assert result.err.startswith("failed: scripted_failure: ")


def test_the_prompt_may_come_from_stdin(runcast: Command, worker: Process) -> None:
    result = runcast.piped("a\nprompt\n", "run", "-", *SCRIPTED, "script=tokens=1", "--run-id", "r1")
    assert result.code == 0
    assert record(runcast, "r1").request["input"]["message"] == "a\nprompt\n"


def test_a_prompt_that_is_no_text_is_refused(runcast: Command) -> None:
    process = runcast.start("run", "-")
    assert process.popen.stdin
    process.popen.stdin.write(b"\xff\xfe")
    result = process.end()
    assert result.code == 2
    assert "UTF-8" in result.err


def test_detached_the_id_is_printed_and_tail_shows_all_of_it(runcast: Command, worker: Process) -> None:
    result = runcast("run", "hi", *SCRIPTED, "script=tokens=3", "--detach")
    assert result.code == 0
    run_id = result.out.strip()
    assert runcast("tail", run_id).out == "w1 w2 w3 \n"
    answer = runcast("run", "hi", *SCRIPTED, "script=tokens=3", "--detach", "--json").lines[0]
    assert set(answer) == {"run_id", "status", "cancel_token"}


def test_the_same_key_follows_the_same_run(runcast: Command, worker: Process) -> None:
    arguments = ("run", "hi", *SCRIPTED, "script=tokens=2", "--json", "--idempotency-key", "k")
    first, again = runcast(*arguments), runcast(*arguments)
    assert first.lines == again.lines
    assert runcast("run", "other", *arguments[2:]).code == 6


def test_a_run_that_nobody_takes_says_so(runcast: Command) -> None:
    process = runcast.start("run", "hi", "--runner", "scripted", "--run-id", "r1")
    process.until("r1 waits for a worker", err=True)
    process.signal(signal.SIGINT)
    assert process.end().code == 130
    assert record(runcast, "r1").status == "queued"


def test_interrupt_leaves_the_run_alone(runcast: Command, worker: Process) -> None:
    process = runcast.start("run", "hi", *SCRIPTED, SLOW, "--run-id", "r1")
    process.until("w3 ")
    process.signal(signal.SIGINT)
    result = process.end()
    assert result.code == 130
    assert "Traceback" not in result.err
    assert record(runcast, "r1").status == "running"
    assert runcast("cancel", "r1").code == 0
    assert ended(runcast, "r1").status == "cancelled"


def test_interrupt_cancels_where_that_was_asked_for(runcast: Command, worker: Process) -> None:
    process = runcast.start("run", "hi", *SCRIPTED, SLOW, "--run-id", "r1", "--cancel-on-interrupt")
    process.until("w3 ")
    process.signal(signal.SIGINT)
    result = process.end()
    assert result.code == 5
    assert record(runcast, "r1").status == "cancelled"


def test_a_second_interrupt_leaves(runcast: Command, worker: Process) -> None:
    script = "script=tokens=2000 rate=50 stubborn=1"
    process = runcast.start("run", "hi", *SCRIPTED, script, "--run-id", "r1", "--cancel-on-interrupt")
    process.until("w3 ")
    process.signal(signal.SIGINT)

    async def asked(b: Broker) -> None:
        end = time.monotonic() + 20
        while not (await b.runs.get("r1")).cancel_requested:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    runcast.broker(asked)
    process.signal(signal.SIGINT)
    assert process.end().code in (130, 5)  # 5: it was faster


def test_on_a_terminal_everything_is_shown_and_the_hint_can_be_pasted(runcast: Command, worker: Process) -> None:
    screen = Screen(runcast, "run", "hi", *SCRIPTED, "script=tokens=400 rate=40 tool=1", "--run-id", "r1")
    screen.until("w3 ")
    screen.popen.send_signal(signal.SIGINT)
    assert screen.rest() == 130
    hint = re.search(r"tail (r1 --from \d+)", screen.plain)
    assert hint
    shown = re.findall(r"w(\d+) ", screen.plain)
    assert runcast("cancel", "r1").code == 0
    rest = re.findall(r"w(\d+) ", runcast("tail", *hint[1].split()).out)
    assert [*shown, *rest] == [str(n) for n in range(1, len(shown) + len(rest) + 1)]


def test_a_whole_run_on_a_terminal(runcast: Command, worker: Process) -> None:
    screen = Screen(runcast, "run", "hi", *SCRIPTED, "script=tokens=4 tool=1", "--run-id", "r1")
    assert screen.rest() == 0
    lines = screen.plain.splitlines()
    assert lines[0] == "r1"
    assert lines[1:3] == ["w1 w2 ", "▶ clock  1"]
    assert lines[-1].startswith("completed · ")
    assert "\x1b[" in screen.seen


def test_tail_of_a_finished_run(runcast: Command) -> None:
    runcast.imported("r1")
    assert runcast("tail", "r1").out == "Hello world\n"
    assert [line["seq"] for line in runcast("tail", "r1", "--json", "--from", "5").lines] == [5, 6]
    assert [line["seq"] for line in runcast("tail", "r1", "--json", "--from", "r1:5").lines] == [6]
    assert [line["type"] for line in runcast("tail", "r1", "--json", "--from", "now").lines] == ["final"]
    compact = runcast("tail", "r1", "--json", "--compact").lines
    assert [line["seq"] for line in compact] == [2, 3, 4, 5, 6]
    assert compact[0]["text"] == "Hello world"


def test_tail_with_a_cursor_at_the_end_still_knows_the_outcome(runcast: Command) -> None:
    runcast.imported("r1")
    assert runcast("tail", "r1", "--from", "r1:6").code == 0


def test_tail_with_a_foreign_cursor_starts_again(runcast: Command) -> None:
    runcast.imported("r1")
    lines = runcast("tail", "r1", "--json", "--from", "other:3").lines
    assert [line["type"] for line in lines[:2]] == ["reset", "message.delta"]


def test_tail_follows_a_live_run_and_returns_its_outcome(runcast: Command) -> None:
    publisher = runcast.start("import", "--run", "r1")
    publisher.until("\n")
    follower = runcast.start("tail", "r1")
    publisher.write('{"type":"message.delta","data":{"text":"first "}}\n')
    follower.until("first ")
    publisher.write('{"type":"failed","data":{"code":"x","message":"went wrong"}}\n')
    assert publisher.end().code == 0
    result = follower.end()
    assert (result.code, result.err) == (1, "failed: x: went wrong\n")


def test_tail_of_an_unknown_run(runcast: Command) -> None:
    assert runcast("tail", "nope").code == 3


def test_a_run_whose_items_are_gone_is_a_gap_and_its_outcome(runcast: Command) -> None:
    assert runcast.piped(RUN, "import", "--run", "r1", RUNCAST_RUN_TTL="0.05").code == 0

    async def gone(b: Broker) -> None:
        end = time.monotonic() + 20
        while await b.log.read("r1", 0, limit=1):
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    runcast.broker(gone)
    result = runcast("tail", "r1")
    assert (result.code, result.out) == (0, "Hello world\n")
    assert "items 1 to 6 are gone" in result.err


@pytest.mark.parametrize("arguments", [("--json",), ("--modes", "final")])
def test_leaving_a_tail_cancels_nothing(runcast: Command, arguments: tuple[str, ...]) -> None:
    publisher = runcast.start("import", "--run", "r1")
    publisher.until("\n")
    follower = runcast.start("tail", "r1", *arguments)
    publisher.write('{"type":"message.delta","data":{"text":"a"}}\n')
    if arguments == ("--json",):
        assert json.loads(follower.until(re.compile(r"(.*)\n"))[1])["text"] == "a"
    else:  # it shows nothing yet: it is there once it has connected
        _attached(runcast)
    follower.signal(signal.SIGINT)
    assert follower.end().code == 130
    publisher.write(RUN)
    assert publisher.end().code == 0
    assert record(runcast, "r1").status == "completed"


def _attached(runcast: Command) -> None:
    async def wait(b: Broker) -> None:
        end = time.monotonic() + 20
        while b"cmd=xread" not in await b.store.call(b"CLIENT", b"LIST"):
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    runcast.broker(wait)
