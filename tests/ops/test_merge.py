"""``runcast merge``: a recorded stream in, one object out; needs no store."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.ops.conftest import Command, Process
from workers.providers import ADAPTERS

CHUNKS = [
    {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {"content": "h\u00e9"}}]},
    {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {"content": "llo"}, "finish_reason": "stop"}]},
]
SSE = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n\n"
LINES = "".join(json.dumps(chunk) + "\n" for chunk in CHUNKS)
BROKEN = SSE.replace("stop", "error")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "stream.sse"
    path.write_text(SSE)
    return path


@pytest.mark.parametrize("text", [SSE, LINES, json.dumps(CHUNKS), "\ufeff" + SSE.replace("\n", "\r\n")])
def test_a_stream_becomes_one_object(runcast: Command, tmp_path: Path, text: str) -> None:
    path = tmp_path / "stream"
    path.write_bytes(text.encode())
    result = runcast("merge", "--api", "openai.chat", str(path))
    assert (result.code, result.err) == (0, "")
    (told,) = result.lines
    assert told["choices"][0]["text"] == "h\u00e9llo"
    assert told["choices"][0]["finish_reason"] == "stop"
    assert (told["error"], told["model"]) == (None, "m")


@pytest.mark.parametrize("file", [[], ["-"]])
def test_stdin(runcast: Command, file: list[str]) -> None:
    result = runcast.piped(SSE, "merge", "--api", "openai.chat", *file, RUNCAST_REDIS_URL="redis://nowhere.invalid")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0]["choices"][0]["text"] == "h\u00e9llo"


def test_a_stream_that_ends_in_an_error_is_printed_and_fails(runcast: Command) -> None:
    result = runcast.piped(BROKEN, "merge", "--api", "openai.chat")
    assert (result.code, result.err) == (1, "")
    assert result.lines[0]["choices"][0]["text"] == "h\u00e9llo"
    assert result.lines[0]["error"]["code"] == "provider_error"


def test_items_are_printed_as_import_reads_them(runcast: Command, recorded: Path) -> None:
    result = runcast("merge", "--items", "--api", "openai.chat", str(recorded))
    assert (result.code, result.err) == (0, "")
    assert [line["type"] for line in result.lines] == ["event", "message.delta", "message.delta", "event"]
    assert result.lines[1] == {
        "type": "message.delta",
        "component_id": "agent",
        "data": {"round": 1, "index": 0, "text": "h\u00e9"},
    }
    final = '{"type":"final","data":{}}\n'
    assert runcast.piped(result.out + final, "import", "--run", "merged").code == 0


def test_items_of_a_stream_that_ends_in_an_error(runcast: Command) -> None:
    result = runcast.piped(BROKEN, "merge", "--items", "--api", "openai.chat")
    assert result.code == 1
    assert result.err == "runcast: provider_error: finish_reason is error\n"
    assert [line["data"].get("text") for line in result.lines[1:3]] == ["h\u00e9", "llo"]


def test_items_come_as_the_bytes_do(runcast: Command) -> None:
    process: Process = runcast.start("merge", "--items", "--api", "openai.chat")
    process.write(SSE[:-60])
    process.until(re.compile('"text":"h\u00e9"'))
    process.write(SSE[-60:])
    assert process.end().code == 0


def test_growing_snapshots_have_to_be_named(runcast: Command) -> None:
    grown = SSE.replace("llo", "h\\u00e9llo")
    for options, text in (([], "h\u00e9h\u00e9llo"), (["--snapshots"], "h\u00e9llo")):
        result = runcast.piped(grown, "merge", "--api", "openai.chat", *options)
        assert result.lines[0]["choices"][0]["text"] == text
    result = runcast.piped("", "merge", "--api", "ollama.chat", "--snapshots")
    assert (result.code, result.out) == (2, "")
    assert "ollama.chat sends no growing snapshots" in result.err


@pytest.mark.parametrize("arguments", [[], ["--api", "openai"], ["--api", ""]])
def test_an_api_that_is_not_known_is_a_usage_error_that_lists_those_there_are(
    runcast: Command, recorded: Path, arguments: list[str]
) -> None:
    result = runcast("merge", *arguments, str(recorded))
    assert (result.code, result.out) == (2, "")
    if arguments:
        assert all(api in result.err for api in ADAPTERS)


def test_a_file_that_is_not_there(runcast: Command, tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        result = runcast("merge", "--api", "openai.chat", str(path))
        assert (result.code, result.out) == (2, "")


def test_half_characters_and_numbers_that_are_none_are_printed_as_json_can(runcast: Command) -> None:
    choice = '{"delta":{"content":"a"},"logprobs":NaN,"finish_reason":"stop"}'
    odd = f'data: {{"id":"\\ud83d","model":"m","choices":[{choice}]}}\n\n'
    for options in ([], ["--items"]):
        result = runcast.piped(odd, "merge", "--api", "openai.chat", *options)
        assert (result.code, result.err) == (0, "")
        assert result.lines


def test_a_reader_that_leaves(runcast: Command) -> None:
    process = runcast.start("merge", "--items", "--api", "openai.chat")
    process.write(SSE[:-60])
    process.until("model.started")
    assert process.popen.stdout
    process.popen.stdout.close()
    process.popen.stdout = None
    process.write(SSE[-60:])
    assert process.popen.stdin
    process.popen.stdin.close()
    process.popen.stdin = None
    assert process.popen.wait(30) == 141
    assert process.popen.stderr
    assert process.popen.stderr.read() == b""
