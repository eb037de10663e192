"""``runcast replay``: formats, timing, and a run published again."""

from __future__ import annotations

import json
import signal
import time

from broker.items import Entry, Mode
from broker.sse import Decoder
from gateway.formats import get_format
from tests.ops.conftest import RUN, Command

TIMED = (
    "".join(
        json.dumps({"type": "message.delta", "ts": 1000 + i * 0.25, "data": {"text": f"{i} "}}) + "\n" for i in range(5)
    )
    + '{"type":"final","ts":1001.25,"data":{"rounds":1}}\n'
)


def test_text_is_the_answer(runcast: Command) -> None:
    runcast.imported("r1")
    assert runcast("replay", "r1").out == "Hello world\n"
    assert runcast("replay", "r1", "--from", "2").out == " world\n"


def test_json_and_modes(runcast: Command) -> None:
    runcast.imported("r1")
    assert runcast("replay", "r1", "--json").lines == runcast("tail", "r1", "--json").lines
    lines = runcast("replay", "r1", "--json", "--modes", "tools").lines
    assert [line["seq"] for line in lines] == [3, 4, 6]


def test_native_frames_are_those_of_the_gateway(runcast: Command) -> None:
    runcast.imported("r1")
    entries: list[Entry] = runcast.broker(lambda b: b.log.read("r1", 0, limit=100))
    native = get_format("native")
    out = runcast("replay", "r1", "--format", "native").out
    frames = b"".join(
        [native.opening(2000), native.items(b"r1", entries, Mode.EVENTS), native.end("r1", "completed", 6)]
    )
    assert out.encode() == frames
    decoder = Decoder()
    assert [event.event for event in decoder.feed(out.encode())][-2:] == ["final", "end"]


def test_ndjson_is_what_export_writes(runcast: Command) -> None:
    runcast.imported("r1")
    assert runcast("replay", "r1", "--format", "ndjson").out == runcast("export", "r1").out


def test_its_own_timing(runcast: Command) -> None:
    runcast.imported("r1", TIMED)
    began = time.monotonic()
    assert runcast("replay", "r1", "--speed", "1").out == "0 1 2 3 4 \n"
    assert time.monotonic() - began >= 1.25
    runcast.imported("r2", TIMED.replace("1001.25", "1600"))
    began = time.monotonic()
    assert runcast("replay", "r2", "--speed", "0").code == 0
    assert time.monotonic() - began < 30


def test_what_retention_removed_is_a_gap(runcast: Command) -> None:
    assert runcast.piped(RUN, "import", "--run", "r1", RUNCAST_RUN_MAX_ITEMS="2").code == 0
    assert "items 1 to 4 are gone" in runcast("replay", "r1").err
    first = runcast("replay", "r1", "--json").lines[0]
    assert first == {"run_id": "r1", "type": "gap", "requested": 0, "earliest": 5, "latest": 6}
    assert "event: gap" in runcast("replay", "r1", "--format", "native").out
    assert runcast("replay", "r1", "--from", "5").err == ""


def test_a_running_run_is_shown_as_far_as_it_came(runcast: Command) -> None:
    process = runcast.start("import", "--run", "r1")
    process.until("\n")
    assert runcast("replay", "r1").code == 0
    assert "event: end" not in runcast("replay", "r1", "--format", "native").out
    assert runcast("replay", "r1", "--into", "r2").code == 6
    process.write(RUN)
    assert process.end().code == 0


def test_into_publishes_the_same_items_with_new_times(runcast: Command) -> None:
    runcast.imported("r1", TIMED)
    began = time.time()
    result = runcast("replay", "r1", "--into", "r2")
    assert (result.code, result.out) == (0, "r2\n")
    old, new = runcast("export", "r1").lines, runcast("export", "r2").lines
    stamps = [line.pop("ts") for line in new]
    for line in old:
        del line["ts"]
    assert old == new
    assert stamps[0] >= began - 1
    assert stamps[-1] - stamps[0] >= 1.2
    assert runcast.broker(lambda b: b.runs.get("r2")).metadata == {"replay_of": "r1"}


def test_into_a_new_id_from_a_place_at_once(runcast: Command) -> None:
    runcast.imported("r1", TIMED)
    made = runcast("replay", "r1", "--into", "auto", "--from", "4", "--speed", "0").out.strip()
    assert made.startswith("run_")
    assert runcast("tail", made).out == "3 4 \n"


def test_into_a_used_id_or_from_nowhere(runcast: Command) -> None:
    runcast.imported("r1")
    assert runcast("replay", "r1", "--into", "r1").code == 6
    assert runcast("replay", "r1", "--into", "r2", "--from", "7").code == 6
    assert runcast("show", "r2").code == 3


def test_interrupts(runcast: Command) -> None:
    runcast.imported("r1", TIMED.replace("1001.25", "9999"))
    shown = runcast.start("replay", "r1", "--speed", "1")
    shown.until("0 ")
    shown.signal(signal.SIGINT)
    assert shown.end().code == 130
    again = runcast.start("replay", "r1", "--into", "r2")
    again.until("r2\n")
    again.signal(signal.SIGINT)
    assert again.end().code == 130
    assert runcast.broker(lambda b: b.runs.get("r2")).status == "failed"


def test_an_unknown_run(runcast: Command) -> None:
    assert runcast("replay", "nope").code == 3
    assert runcast("replay", "nope", "--into", "x").code == 3
