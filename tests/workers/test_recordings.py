"""Recorded runs of the real Hermes 0.22.2 → items and verdicts.

The recordings lie beside the repository and are not part of it; in CI they must be there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from broker.items import Event, Item, MessageDelta, ToolCompleted, ToolStarted, Usage
from broker.merge import Merger, text_of
from workers.hermes.output import OutputParser
from workers.hermes.verdict import judge

FIXTURES = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures" / "hermes"


def _recording(name: str) -> tuple[bytes, str, int]:
    if not FIXTURES.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"the recordings are not at {FIXTURES}")
        pytest.skip("no recordings of Hermes beside the repository")
    last = json.loads((FIXTURES / f"{name}.jsonl").read_text().splitlines()[-1])
    return (FIXTURES / f"{name}.stdout").read_bytes(), (FIXTURES / f"{name}.stderr").read_text(), last["rc"]


def _read(name: str) -> tuple[OutputParser, list[Item], str, int]:
    raw, stderr, exit_code = _recording(name)
    parser = OutputParser()
    items = parser.feed(raw)
    return parser, items + parser.close(succeeded=exit_code == 0), stderr, exit_code


def _texts(raw: bytes) -> str:
    records = [json.loads(line) for line in raw.splitlines()]
    return "".join(r["text"] for r in records if r["type"] == "text")


def test_a_tool_round() -> None:
    parser, items, stderr, exit_code = _read("iot_01_streamjson_tool")
    assert judge(parser, exit_code, stderr) is None
    deltas = [i for i in items if isinstance(i, MessageDelta)]
    assert "".join(d.text for d in deltas) == _texts(_recording("iot_01_streamjson_tool")[0])
    assert [d.round for d in deltas] == [1] * 6 + [2] * 12
    started = next(i for i in items if isinstance(i, ToolStarted))
    ended = next(i for i in items if isinstance(i, ToolCompleted))
    assert started.args == {"command": "echo hello-from-tool; pwd"}
    assert (started.call_id, ended.duration_ms) == (ended.call_id, 112)
    usage = next(i for i in items if isinstance(i, Usage))
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (2300, 117, 200)
    merger = Merger()
    for item in items:
        merger.add(item)
    assert parser.result is not None
    assert text_of(merger.message(2)).strip() == parser.result.text
    assert not [i for i in items if isinstance(i, Event) and i.name != "hermes.session"]


def test_an_answer_of_a_reasoning_model() -> None:
    parser, items, stderr, exit_code = _read("iot_02_streamjson_REASON")
    assert judge(parser, exit_code, stderr) is None
    assert "".join(i.text for i in items if isinstance(i, MessageDelta)) == "The answer is forty two."
    assert parser.session_id == "20261129_200738_cd72cc"


def test_a_rejected_key() -> None:
    parser, items, stderr, exit_code = _read("iot_02_streamjson_ERR401")
    failure = judge(parser, exit_code, stderr)
    assert failure is not None
    assert (failure.code, failure.retryable) == ("provider_auth", False)
    assert "HTTP 401: bad key (fake)" in failure.message
    assert not [i for i in items if isinstance(i, (MessageDelta, Usage))]


def test_a_terminated_run_keeps_its_text() -> None:
    parser, items, stderr, exit_code = _read("iot_03_sigterm")
    assert exit_code == 130
    failure = judge(parser, exit_code, stderr)
    assert failure is not None
    assert failure.code == "interrupted"
    assert "".join(i.text for i in items if isinstance(i, MessageDelta)) == "w00 w01 w02 w03 w04 "


def test_a_hermes_that_is_not_configured() -> None:
    parser, items, stderr, exit_code = _read("90_C_unconfigured")
    failure = judge(parser, exit_code, stderr)
    assert failure is not None
    assert failure.code == "not_configured"
    assert "hermes setup" in failure.message
    assert items == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("32_B_Q_resume_missing", "hermes_session_not_found"),
        ("50_B_Q_ERR401", "provider_auth"),
        ("50_B_Q_ERR500", "provider_error"),
    ],
)
def test_failures_of_commands_that_print_no_records(name: str, code: str) -> None:
    parser, _, stderr, exit_code = _read(name)
    failure = judge(parser, exit_code, stderr)
    assert failure is not None
    assert failure.code == code
