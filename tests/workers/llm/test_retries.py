"""Before the first token: what is tried again, how often and when, and what never is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers import free_port
from tests.workers.llm.endpoint import Play, answer, serve, stream
from tests.workers.llm.entries import merged, named, texts
from tests.workers.llm.plays import CHAT, ERROR, WORDS, broken, ends, fence, hang_up
from tests.workers.llm.stage import Staging
from tests.workers.llm.wire import sse


@pytest.mark.parametrize(
    ("status", "body", "code", "retryable"),
    [
        (401, ERROR, "provider_auth", False),
        (403, ERROR, "provider_auth", False),
        (400, ERROR, "provider_error", False),
        (404, {"error": "model 'x' not found"}, "provider_error", False),
        (422, {"detail": [{"loc": ["body"], "msg": "wrong"}]}, "provider_error", False),
        (429, {"error": {"message": "pay first", "code": "insufficient_quota"}}, "provider_rate_limit", False),
        (418, b"<html>\n  teapot</html>", "provider_error", False),
    ],
)
async def test_what_would_fail_again_is_not_tried_again(
    status: int, body: Any, code: str, retryable: bool, staging: Staging
) -> None:
    async with serve(answer(status, body)) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", code, retryable)
    assert entries[-1].fields["message"].startswith(f"HTTP {status}: ")
    assert len(endpoint.exchanges) == 1
    assert named(entries, "retry") == []
    (event,) = named(entries, "model.failed")
    assert (event["code"], event["message"]) == (code, entries[-1].fields["message"])
    assert named(entries, "model.started") == []
    assert entries[-1].fields["partial"] is None


async def test_the_words_of_the_server_are_passed_on(staging: Staging) -> None:
    async with serve(answer(401, ERROR)) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert entries[-1].fields["message"] == "HTTP 401: the words of the server"


@pytest.mark.parametrize(
    "trouble",
    [
        answer(429, ERROR, retry_after="0"),
        answer(408, ERROR),
        answer(409, ERROR),
        answer(500, ERROR),
        answer(529, b""),
        hang_up,
        broken(),
        broken(CHAT[0]),
        broken(CHAT[0], CHAT[1][:20]),
        ends(),
        ends(CHAT[0]),
        ends(sse({"error": {"message": "overloaded", "code": "server_error"}})),
    ],
    ids=[
        "429",
        "408",
        "409",
        "500",
        "529",
        "reset",
        "cut-0",
        "cut-1",
        "cut-in-event",
        "empty",
        "no-end",
        "error-event",
    ],
)
async def test_a_passing_trouble_before_the_first_token_leaves_no_trace_but_its_announcement(
    trouble: Play, staging: Staging
) -> None:
    async with serve(trouble, trouble, stream(*CHAT)) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries)[0] == "final"
    assert texts(entries) == WORDS
    assert len(endpoint.exchanges) == 3
    retries = named(entries, "retry")
    assert [one["attempt"] for one in retries] == [2, 3]
    assert all(one["because"] and one["wait_s"] < 0.2 for one in retries)
    assert len(named(entries, "model.started")) == len(named(entries, "model.completed")) == 1
    assert named(entries, "model.failed") == []
    assert entries[-1].fields["message"] == merged(entries)
    assert entries[-1].fields["metadata"]["attempts"] == 3


async def test_trouble_that_does_not_pass_ends_the_run(staging: Staging) -> None:
    async with serve(answer(500, ERROR)) as endpoint, staging(endpoint.url, retries=2) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "provider_error", True)
    assert len(endpoint.exchanges) == 3
    assert [one["attempt"] for one in named(entries, "retry")] == [2, 3]
    assert len(named(entries, "model.failed")) == 1


async def test_no_retries_are_none(staging: Staging) -> None:
    async with serve(answer(500, ERROR)) as endpoint, staging(endpoint.url, retries=0) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "provider_error", True)
    assert len(endpoint.exchanges) == 1


async def test_the_server_says_when(staging: Staging) -> None:
    async with (
        serve(answer(429, ERROR, retry_after="0.3"), stream(*CHAT)) as endpoint,
        staging(endpoint.url) as stage,
    ):
        entries = await stage.run()
    assert fence(entries)[0] == "final"
    (retry,) = named(entries, "retry")
    assert 0.3 <= retry["wait_s"] < 0.4
    first, second = (exchange.sent[0] for exchange in endpoint.exchanges)
    assert second - first >= 0.3


async def test_a_wait_beyond_the_limit_is_not_waited_for(staging: Staging) -> None:
    async with (
        serve(answer(429, ERROR, retry_after="3600"), stream(*CHAT)) as endpoint,
        staging(endpoint.url) as stage,
    ):
        entries = await stage.run()
    assert fence(entries) == ("failed", "provider_rate_limit", True)
    assert len(endpoint.exchanges) == 1


async def test_nobody_listens(staging: Staging) -> None:
    async with staging(f"http://127.0.0.1:{free_port()}") as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "provider_error", True)
    assert "not reached" in entries[-1].fields["message"]
    assert len(named(entries, "retry")) == 2
