"""What goes into Hermes' command line and what comes out of its pipe: cases 27 and 28, through a real worker process,
its supervisor and Redis, with a stub in Hermes' place, in each mode that is a command."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cases.stage import Stage
from tests.e2e.processes import COMMAND
from tests.servers import RedisServer
from tests.workers.drawn import Drawn
from workers.hermes.command import ARGUMENT_MAX, MODES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")
STUB = Path(__file__).with_name("stub_hermes.py")
LINE_MAX = 6 << 20


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def s(mode: str, redis7: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway, and a worker whose Hermes is the stub, in that mode."""
    yield from _staged(mode, redis7, tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="module")
def records(redis7: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from _staged("stream-json", redis7, tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def screens(redis7: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from _staged("text", redis7, tmp_path_factory.mktemp("screens"))


@pytest.fixture(scope="module")
def quiet(redis7: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from _staged("quiet", redis7, tmp_path_factory.mktemp("quiet"))


def _staged(mode: str, redis: RedisServer, directory: Path) -> Iterator[Stage]:
    script = directory / "hermes"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{STUB}" "$@"\n')
    script.chmod(0o755)
    made = Stage(redis.url, f"t{uuid4().hex[:12]}", directory, block=1.0)
    try:
        asyncio.run(made.gateway())
        made.worker(HERMES_BIN=str(script), HERMES_LINE_MAX_BYTES=str(LINE_MAX), HERMES_MODE=mode)
        yield made
    finally:
        made.close()
    assert "Traceback" not in made.workers[0].output


async def watched(s: Stage, run_id: str) -> tuple[list[str], dict]:
    """The text deltas that a viewer was given, and the outcome."""
    viewer = await s.watch(run_id).end()
    outcome = await s.ended(run_id)
    assert viewer.ids == list(range(1, outcome["seq"] + 1))
    return viewer.texts, outcome


# Case 27: what a prompt may be.

PROMPTS = [
    "-",
    "--",
    "--help",
    "-q evil --yolo",
    "--query=evil\n--model=evil",
    "it's \"quoted\" 'twice' \\ \\\\ \\n",
    "$(id) `id` ${HOME} ; id | id && id > /dev/null # !! *",
    "line\nline\r\n\ttab\n\n",
    "  around  ",
    "漢😀\u2028\u2029\u0085é\x7f\x1b[31m",
    "x" * (ARGUMENT_MAX - len("--query=") - 1),
]


async def test_case_27_a_prompt_is_passed_unchanged_never_a_flag_never_a_shell(s: Stage, mode: str):
    for prompt in PROMPTS:
        run_id = await s.run(
            prompt, runner="hermes", input={"message": prompt, "model": "-m", "toolsets": ["--x", "y"]}
        )
        (text,), outcome = await watched(s, run_id)
        assert outcome["type"] == "final", outcome
        argv = [bytes.fromhex(argument).decode() for argument in json.loads(text)]
        assert argv[:2] == ["chat", f"--query={prompt}"]
        shown = {"stream-json": ["--format=stream-json"], "text": [], "quiet": ["-Q"]}[mode]
        assert sorted(argv[2:]) == sorted([*shown, "--source=tool", "--yolo", "--model=-m", "--toolsets=--x,y"])


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("nul \0 inside", "invalid_prompt"),
        ("x" * 200_000, "prompt_too_long"),
        ("é" * 65_600, "prompt_too_long"),
    ],
    ids=["NUL", "200 kB", "two bytes each"],
)
async def test_case_27_what_no_argument_can_carry_is_refused_clearly(s: Stage, prompt: str, code: str):
    texts, outcome = await watched(s, await s.run(prompt, runner="hermes"))
    assert (texts, outcome["type"], outcome["code"]) == ([], "failed", code)
    assert outcome["message"]


async def test_case_27_half_a_character_is_refused_at_the_door(s: Stage):
    body = {"runner": "hermes", "input": {"message": "half \ud800 a character"}}
    status, problem = await s.post("/v1/runs", body)
    assert (status, problem["status"]) in ((400, 400), (422, 422))


async def test_case_27_a_prompt_that_looks_like_an_option_may_be_given_to_the_command(s: Stage):
    arguments = [*COMMAND, "run", "--redis", s.redis_url, "--detach", "--runner", "hermes", "--", "-q --help"]
    process = await asyncio.create_subprocess_exec(
        *arguments, env=s.environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0, err
    (text,), _ = await watched(s, out.decode().strip())
    assert bytes.fromhex(json.loads(text)[1]).decode() == "--query=-q --help"


# Case 28: what a command's output may be.

Pieces = list[tuple[float, bytes]]


def record(**fields: object) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def text_record(text: str) -> bytes:
    return record(type="text", text=text)


INIT = record(type="system", subtype="init", model="stub", session_id="s1") + b"\n"
EMOJI = text_record("é😀!") + b"\n"


def result(text: str) -> bytes:
    return record(type="result", session_id="s1", exit_code=0, text=text)


async def played(s: Stage, tmp_path: Path, pieces: Pieces) -> tuple[list[str], dict, list[dict]]:
    """The text deltas, the outcome, and the events of a run of Hermes that prints these pieces."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([(pause, piece.decode("latin-1")) for pause, piece in pieces]))
    run_id = await s.run(f"PLAY {script}", runner="hermes")
    texts, outcome = await watched(s, run_id)
    return texts, outcome, [i for i in await s.items(run_id) if i["type"] == "event"]


def names(events: list[dict]) -> list[str]:
    return [event["name"] for event in events]


async def test_case_28_a_line_split_over_two_reads_at_every_place_is_decoded_once(records: Stage, tmp_path: Path):
    pieces: Pieces = [(0, INIT)]
    for place in range(1, len(EMOJI)):
        pieces += [(0.004, EMOJI[:place]), (0.004, EMOJI[place:])]
    pieces.append((0, result("é😀!" * (len(EMOJI) - 1)) + b"\n"))
    texts, outcome, events = await played(records, tmp_path, pieces)
    assert outcome["type"] == "final"
    assert texts == ["é😀!"] * (len(EMOJI) - 1)
    assert not {"warning", "merge.mismatch"} & set(names(events))


async def test_case_28_a_line_of_5_mb_loses_nothing(records: Stage, tmp_path: Path):
    big = "é漢😀\\ " * 450_000
    line = text_record(big) + b"\n"
    assert 5_000_000 <= len(line) < LINE_MAX
    pieces: Pieces = [(0, INIT), (0, line), (0, text_record("after") + b"\n"), (0, result(""))]
    texts, outcome, _ = await played(records, tmp_path, pieces)
    assert outcome["type"] == "final"
    assert texts[-1] == "after"
    assert "".join(texts[:-1]) == big
    assert 5 <= len(texts) < 12


async def test_case_28_a_line_beyond_the_limit_is_left_out_and_said_so(records: Stage, tmp_path: Path):
    beyond = text_record("x" * LINE_MAX) + b"\n"
    a, b = (text_record(text) + b"\n" for text in "ab")
    texts, outcome, events = await played(
        records, tmp_path, [(0, INIT), (0, a), (0, beyond), (0, b), (0, result("ab"))]
    )
    assert (outcome["type"], texts) == ("final", ["a", "b"])
    (warning,) = [event for event in events if event["name"] == "warning"]
    assert warning["code"] == "line_too_long"
    assert f"{len(beyond) - 1:,}" in warning["message"]


async def test_case_28_invalid_utf8_no_last_newline_and_model_text_that_is_json(records: Stage, tmp_path: Path):
    pieces: Pieces = [
        (0, INIT),
        (0, text_record("a").replace(b'"a"', b'"a\xff\xe2\x82b"') + b"\n"),
        (0, b'"just a string"\n'),
        (0, b"42\n[1, 2]\nnull\n"),
        (0, b'{"type": "text", "text": \n'),
        (0, b"plain \xc3\xa9\n"),
        (0.01, result("")),  # and no newline
    ]
    texts, outcome, events = await played(records, tmp_path, pieces)
    assert outcome["type"] == "final"
    whole = 'a\ufffd\ufffdb"just a string"\n42\n[1, 2]\nnull\n{"type": "text", "text": \nplain é\n'
    assert "".join(texts) == whole
    assert "warning" not in names(events)


@pytest.mark.parametrize("end", [b"\n", b""])
async def test_case_28_a_command_that_prints_plain_lines_only(records: Stage, tmp_path: Path, end: bytes):
    pieces: Pieces = [(0, b'"quoted"\n'), (0.01, b"and then"), (0.01, b" the end" + end)]
    texts, outcome, _ = await played(records, tmp_path, pieces)
    assert "".join(texts) == '"quoted"\nand then the end' + end.decode()
    assert outcome["type"] == "final"


# Case 28, on a screen.


@pytest.mark.parametrize("indent", ["    ", ""], ids=["0.19.0", "0.22.2"])
async def test_case_28_a_screen_split_at_every_place_is_decoded_once(screens: Stage, tmp_path: Path, indent: str):
    raw = Drawn(indent=indent, width=40).answer("é😀!", "  漢").bytes()
    texts, outcome, events = await played(screens, tmp_path, [(0.003, raw[i : i + 1]) for i in range(len(raw))])
    assert (outcome["type"], "".join(texts)) == ("final", "é😀!\n  漢")
    assert names(events).count("hermes.session") == 1
    assert "warning" not in names(events)


async def test_case_28_a_line_of_5_mb_on_a_screen_loses_nothing(screens: Stage, tmp_path: Path):
    big = "é漢😀\\ " * 460_000
    assert 5_000_000 <= len(big.encode()) < LINE_MAX
    raw = Drawn(indent="").answer("before", big, "after").bytes()
    texts, outcome, _ = await played(screens, tmp_path, [(0, raw)])
    assert outcome["type"] == "final"
    assert "".join(texts) == f"before\n{big}\nafter"


async def test_case_28_a_line_beyond_the_limit_on_a_screen_is_left_out_and_said_so(screens: Stage, tmp_path: Path):
    raw = Drawn(indent="").answer("a", "x" * (LINE_MAX + 1), "b").bytes()
    texts, outcome, events = await played(screens, tmp_path, [(0, raw)])
    assert (outcome["type"], "".join(texts)) == ("final", "a\nb")
    assert [event["code"] for event in events if event["name"] == "warning"] == ["line_too_long"]


async def test_case_28_invalid_utf8_and_no_last_newline_on_a_screen(screens: Stage, tmp_path: Path):
    raw = Drawn().head().add("    aXb").bytes(closed=False).replace(b"X", b"\xff\xe2\x82")
    texts, outcome, _ = await played(screens, tmp_path, [(0, raw), (0.01, b'    "just'), (0.01, b' a string"')])
    assert outcome["type"] == "final"
    assert "".join(texts) == 'a\ufffd\ufffdb\n"just a string"'


# Case 28, the quiet contract.


async def test_case_28_a_quiet_answer_is_one_text_however_it_comes(quiet: Stage, tmp_path: Path):
    reply = '"a" é漢😀\n42\n{"type": "text", "text": "x"}\n'
    raw = reply.encode() + b"\xff\xe2\x82 end"
    texts, outcome, events = await played(quiet, tmp_path, [(0.003, raw[i : i + 1]) for i in range(len(raw))])
    assert (outcome["type"], texts) == ("final", [f"{reply}\ufffd\ufffd end"])
    assert "warning" not in names(events)


async def test_case_28_a_quiet_answer_of_5_mb_loses_nothing(quiet: Stage, tmp_path: Path):
    big = "é漢😀\\ " * 460_000
    texts, outcome, _ = await played(quiet, tmp_path, [(0, big.encode()), (0, b"\n")])
    assert outcome["type"] == "final"
    assert "".join(texts) == big
