"""After the first token, and what is no stream at all: which code, and what is kept."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.workers.llm.endpoint import Exchange, Play, serve, stream
from tests.workers.llm.entries import named, of_type, texts
from tests.workers.llm.plays import CHAT, CLAUDE, WORDS, broken, ends, fence, silent_after
from tests.workers.llm.stage import Staging
from tests.workers.llm.wire import pieces, sse


@pytest.mark.parametrize(
    ("play", "code"),
    [
        (broken(*CHAT[:3]), "incomplete_stream"),
        (ends(*CHAT[:3]), "incomplete_stream"),
        (ends(*CHAT[:3], sse({"error": {"message": "oh", "code": "server_error"}})), "provider_error"),
        (ends(*CHAT[:3], sse({"error": {"message": "oh", "code": "rate_limit_exceeded"}})), "provider_rate_limit"),
        (ends(*CHAT[:3], b"data: {broken json\n\n", *CHAT[3:]), "unreadable_stream"),
    ],
    ids=["cut", "end", "error", "rate", "garbage"],
)
async def test_after_the_first_token_nothing_is_tried_again_and_the_text_stays(
    play: Play, code: str, staging: Staging
) -> None:
    async with serve(play, stream(*CHAT)) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", code, True)
    assert len(endpoint.exchanges) == 1
    assert named(entries, "retry") == []
    assert texts(entries) == WORDS[:2]
    assert entries[-1].fields["partial"]["content"] == [{"type": "text", "text": "one two "}]
    assert named(entries, "model.started")
    assert (named(entries, "model.failed") or named(entries, "model.completed"))[-1]


async def test_an_error_of_anthropics_inside_the_stream(staging: Staging) -> None:
    error = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")
    async with (
        serve(ends(*CLAUDE[:4], error)) as endpoint,
        staging(endpoint.url, api="anthropic.messages") as stage,
    ):
        entries = await stage.run()
    assert fence(entries) == ("failed", "provider_error", True)
    assert "Overloaded" in entries[-1].fields["message"]
    assert texts(entries) == WORDS[:1]
    (failed,) = named(entries, "model.failed")
    assert failed["message"] == "Overloaded"
    # What the provider counted before it failed was used, and has its price.
    assert entries[-1].fields["usage"]["input_tokens"] == 1000


async def test_behind_an_error_nothing_is_waited_for(staging: Staging) -> None:
    error = sse({"error": {"message": "oh", "code": "server_error"}})
    async with serve(silent_after(*CHAT[:3], error)) as endpoint, staging(endpoint.url, silence=0) as stage:
        async with asyncio.timeout(30):
            entries = await stage.run()
        await asyncio.wait_for(endpoint.exchanges[0].gone.wait(), 30)
    assert fence(entries) == ("failed", "provider_error", True)


async def test_a_response_that_had_its_end_is_whole_however_the_connection_ends(staging: Staging) -> None:
    async with serve(broken(*CHAT)) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries)[0] == "final"
    assert named(entries, "model.failed") == []


@pytest.mark.parametrize("words", [[], ["  ", "\n"]])
async def test_an_empty_reply(words: list[str], staging: Staging) -> None:
    async with serve(stream(*pieces("openai.chat", words))) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "empty_reply", True)
    assert "stop" in entries[-1].fields["message"]
    assert len(endpoint.exchanges) == 1
    assert entries[-1].fields["usage"]["output_tokens"] == 100
    assert [one["total"] for one in of_type(entries, "cost")] == ["0.003"]


# What is no stream.


@pytest.mark.parametrize(
    "body",
    [b"<!doctype html><p>Log in, please</p>", b"\x00\xff" * 500, b"just words"],
    ids=["html", "bytes", "text"],
)
async def test_garbage(body: bytes, staging: Staging) -> None:
    async with serve(stream(body)) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "unreadable_stream", False)
    assert len(endpoint.exchanges) == 1


async def test_a_page_that_breaks_off_is_no_stream_either(staging: Staging) -> None:
    async with serve(broken(b"<!doctype html><p>Log in")) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "unreadable_stream", False)
    assert len(endpoint.exchanges) == 1


async def test_a_line_without_end_is_not_held_without_bound(staging: Staging) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.head(content_type="text/event-stream")
        await exchange.send(CHAT[0])
        await exchange.send(CHAT[1])
        await exchange.send(b'data: {"choices": [{"delta": {"content": "')
        while not exchange.gone.is_set():
            await exchange.send(b"x" * 4096)

    async with (
        serve(play) as endpoint,
        staging(endpoint.url, line_max_bytes=1 << 16, response_max_bytes=1 << 20) as stage,
    ):
        entries = await stage.run()
        await asyncio.wait_for(endpoint.exchanges[0].gone.wait(), 30)
    assert fence(entries) == ("failed", "response_too_big", False)
    assert texts(entries) == WORDS[:1]
    assert len(endpoint.exchanges[0].sent) < 3000


async def test_a_huge_line_ends_the_response(staging: Staging) -> None:
    huge = sse({"choices": [{"index": 0, "delta": {"content": "x" * 100_000}}]})
    async with (
        serve(ends(*CHAT[:2], huge, *CHAT[2:])) as endpoint,
        staging(endpoint.url, line_max_bytes=1 << 16) as stage,
    ):
        entries = await stage.run()
    assert fence(entries) == ("failed", "unreadable_stream", False)
    assert texts(entries) == WORDS[:1]


async def test_a_response_without_end_ends(staging: Staging) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.head(content_type="text/event-stream")
        while not exchange.gone.is_set():
            await exchange.send(CHAT[1])

    async with serve(play) as endpoint, staging(endpoint.url, response_max_bytes=100_000) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "response_too_big", False)
    assert set(texts(entries)) == {WORDS[0]}


async def test_a_compressed_stream_is_read_though_none_was_asked_for(staging: Staging) -> None:
    async def play(exchange: Exchange) -> None:
        assert exchange.headers["accept-encoding"] == "identity"
        await exchange.head(content_type="text/event-stream", content_encoding="gzip")
        packed = gzip.compress(b"".join(CHAT))
        for at in range(0, len(packed), 7):
            await exchange.send(packed[at : at + 7])
        await exchange.end()

    async with serve(play) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert texts(entries) == WORDS
    assert fence(entries)[0] == "final"


async def test_what_says_that_it_is_compressed_and_is_not(staging: Staging) -> None:
    async def play(exchange: Exchange) -> None:
        await exchange.head(content_type="text/event-stream", content_encoding="gzip")
        await exchange.send(b"".join(CHAT))
        await exchange.end()

    async with serve(play) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "provider_error", False)
    assert len(endpoint.exchanges) == 1
