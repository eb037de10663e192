"""``runcast import`` and ``export``: a pipe as a live publisher, and every way it can end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time

import pytest

from broker.api import Broker
from broker.records import RunRecord
from tests.ops.conftest import RUN, Command, Process

ONE = '{"type":"message.delta","data":{"text":"one"}}\n'


def record(runcast: Command, run_id: str) -> RunRecord:
    return runcast.broker(lambda b: b.runs.get(run_id))


def items_reach(runcast: Command, run_id: str, last: int) -> None:
    async def wait(b: Broker) -> None:
        end = time.monotonic() + 20
        while (await b.runs.get(run_id)).last < last:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    runcast.broker(wait)


def test_a_run_goes_in_and_comes_out_the_same(runcast: Command) -> None:
    result = runcast.piped(RUN, "import", "--run", "r1")
    assert (result.code, result.out, result.err) == (0, "r1\n", "")
    exported = runcast("export", "r1")
    assert exported.code == 0
    lines = exported.lines
    for line in lines:
        assert line.pop("ts") > 1e9
    given = [{"component_id": "agent", **json.loads(line)} for line in RUN.splitlines()]
    assert lines == given


def test_an_export_imports_as_it_is(runcast: Command) -> None:
    runcast.imported("r1")
    first = runcast("export", "r1").out
    assert runcast.piped(first, "import", "--run", "r2").code == 0
    assert runcast("export", "r2").out == first


def test_it_adds_no_item_of_its_own(runcast: Command) -> None:
    runcast.imported("r1")
    assert record(runcast, "r1").last == len(RUN.splitlines())


def test_an_id_is_made_and_printed_first_also_as_json(runcast: Command) -> None:
    result = runcast.piped(RUN, "import", "--json", "--session", "s1")
    run_id = result.lines[0]["run_id"]
    assert run_id.startswith("run_")
    assert record(runcast, run_id).session_id == "s1"


def test_a_pipe_is_a_live_publisher(runcast: Command) -> None:
    process = runcast.start("import", "--run", "live")
    process.until(re.compile(r"\Alive\n"))
    process.write(ONE + ONE[:20])
    items_reach(runcast, "live", 1)
    assert record(runcast, "live").status == "running"
    process.write(ONE[20:])
    items_reach(runcast, "live", 2)
    process.write('{"type":"final","data":{}}')  # without its newline
    assert process.end().code == 0
    assert record(runcast, "live").status == "completed"


def test_no_worker_takes_an_imported_run(runcast: Command) -> None:
    process = runcast.start("import", "--run", "mine")
    process.until("\n")
    assert runcast.broker(lambda b: b.queue.size()) == 0
    process.write(RUN)
    assert process.end().code == 0


def test_input_without_a_fence_is_a_failed_run_with_what_there_was(runcast: Command) -> None:
    result = runcast.piped(ONE + "\n" + ONE, "import", "--run", "r1")
    assert result.code == 1
    assert "without a fence" in result.err
    outcome = record(runcast, "r1").outcome
    assert outcome
    assert outcome["type"] == "failed"
    assert outcome["item"]["code"] == "no_fence"
    assert outcome["item"]["partial"]["content"] == [{"type": "text", "text": "oneone"}]


def test_empty_input_is_a_failed_run(runcast: Command) -> None:
    assert runcast.piped("", "import", "--run", "r1").code == 1
    assert record(runcast, "r1").status == "failed"


def test_a_bad_line_is_named_and_ends_the_run(runcast: Command) -> None:
    result = runcast.piped(ONE + "\n{nonsense\n" + RUN, "import", "--run", "r1")
    assert result.code == 2
    assert "line 3" in result.err
    assert "r1 is sealed as failed" in result.err
    outcome = record(runcast, "r1").outcome
    assert outcome
    assert outcome["item"]["code"] == "invalid_item"
    assert outcome["item"]["message"].startswith("line 3: ")
    assert record(runcast, "r1").last == 2


def test_a_line_behind_the_fence_is_named_and_the_run_stays_complete(runcast: Command) -> None:
    result = runcast.piped(RUN + ONE, "import", "--run", "r1")
    assert result.code == 2
    assert f"line {len(RUN.splitlines()) + 1}" in result.err
    assert record(runcast, "r1").status == "completed"


def test_blank_lines_are_nothing(runcast: Command) -> None:
    assert runcast.piped("\n\r\n" + RUN + "\n  \n", "import", "--run", "r1").code == 0


def test_a_used_id_is_refused_before_anything_is_read(runcast: Command) -> None:
    runcast.imported("r1")
    result = runcast.piped(RUN, "import", "--run", "r1")
    assert (result.code, result.out) == (6, "")
    assert "already" in result.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_seals_the_run(runcast: Command, number: signal.Signals, code: int) -> None:
    process = runcast.start("import", "--run", "r1")
    process.until("\n")
    process.write(ONE)
    items_reach(runcast, "r1", 1)
    process.signal(number)
    assert process.popen.wait(20) == code
    outcome = record(runcast, "r1").outcome
    assert outcome
    assert outcome["item"]["code"] == "interrupted"
    assert outcome["item"]["partial"]["content"] == [{"type": "text", "text": "one"}]


def test_a_cancel_from_elsewhere_ends_it_as_cancelled(runcast: Command) -> None:
    process = runcast.start("import", "--run", "r1", RUNCAST_BEAT="0.1")
    process.until("\n")
    process.write(ONE)
    items_reach(runcast, "r1", 1)
    assert runcast("cancel", "r1").code == 0
    assert process.popen.wait(20) == 5
    assert record(runcast, "r1").status == "cancelled"


def test_it_beats_while_its_input_is_silent(runcast: Command) -> None:
    process = runcast.start("import", "--run", "r1", RUNCAST_BEAT="0.05")
    process.until("\n")

    async def moves(b: Broker) -> None:
        first, end = (await b.runs.get("r1")).beat, time.monotonic() + 20
        while (await b.runs.get("r1")).beat == first:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    runcast.broker(moves)
    process.write(RUN)
    assert process.end().code == 0


def test_a_reader_that_leaves_is_no_error_to_look_at(runcast: Command) -> None:
    lines = json.dumps({"type": "message.delta", "data": {"text": "x" * 1000}}) + "\n"
    runcast.imported("big", lines * 500 + '{"type":"final"}\n')
    for command in (("export", "big"), ("tail", "big", "--json"), ("replay", "big", "--format", "native")):
        process: Process = runcast.start(*command)
        assert process.popen.stdout
        assert len(os.read(process.popen.stdout.fileno(), 100)) > 0
        process.popen.stdout.close()
        assert process.popen.wait(20) == 141
        assert process.popen.stderr
        assert process.popen.stderr.read() == b""


def test_export_says_what_retention_removed(runcast: Command) -> None:
    text = ONE * 10 + '{"type":"final"}\n'
    assert runcast.piped(text, "import", "--run", "r1", RUNCAST_RUN_MAX_ITEMS="4").code == 0
    exported = runcast("export", "r1")
    assert len(exported.lines) == 4
    assert "items 1 to 7 are gone" in exported.err


def test_export_of_an_unknown_run(runcast: Command) -> None:
    assert runcast("export", "nope").code == 3
