"""Every API, from its wire to the run's items, as a worker's run against a real HTTP server."""

from __future__ import annotations

import asyncio

import pytest

from broker.merge import text_of
from tests.servers import RedisServer
from tests.workers.llm.endpoint import Exchange, serve, stream
from tests.workers.llm.entries import merged, named, of_type, texts
from tests.workers.llm.stage import KEY, Staging
from tests.workers.llm.wire import APIS, MODEL, pieces

WORDS = ["Hello ", "there, ", "“quoted”, ", "漢字 ", "😀."]
_TYPES = {"ollama.chat": "application/x-ndjson"}


@pytest.mark.parametrize("api", APIS)
async def test_a_run_of_each_api(api: str, staging: Staging) -> None:
    body = pieces(api, WORDS)
    async with (
        serve(stream(*body, type=_TYPES.get(api, "text/event-stream"))) as endpoint,
        staging(endpoint.url, api=api) as stage,
    ):
        entries = await stage.run()
    assert entries[-1].type == "final", entries[-1].fields
    assert "".join(texts(entries)) == "".join(WORDS)
    final = entries[-1].fields
    assert text_of(final["message"]) == "".join(WORDS)
    assert final["message"] == merged(entries)
    assert final["metadata"] == {"api": api, "model": MODEL, "attempts": 1}
    assert (final["usage"]["input_tokens"], final["usage"]["output_tokens"]) == (1000, 100)
    (started,) = named(entries, "model.started")
    (completed,) = named(entries, "model.completed")
    assert started["model"] in (MODEL, None)
    assert completed["finish_reason"]
    assert named(entries, "model.failed") == named(entries, "retry") == named(entries, "merge.mismatch") == []
    kinds = [entry.fields.get("name", entry.type) for entry in entries]
    assert kinds.index("model.started") < kinds.index("message.delta") < kinds.index("model.completed")


@pytest.mark.parametrize("api", sorted(set(APIS) - {"cohere.chat", "ollama.chat"}))
async def test_usage_cache_and_cost_are_items(api: str, staging: Staging) -> None:
    async with serve(stream(*pieces(api, WORDS))) as endpoint, staging(endpoint.url, api=api) as stage:
        entries = await stage.run()
    usage = of_type(entries, "usage")
    assert usage[-1]["total"]["cache_read_tokens"] == 400
    for name in ("input_tokens", "output_tokens", "cache_read_tokens"):
        assert sum(one[name] or 0 for one in usage) == usage[-1]["total"][name]
    (hit,) = of_type(entries, "cache")
    assert (hit["status"], hit["tokens"]) == ("hit", 400)
    # 600 × $2.50 + 400 × $1.25 + 100 × $10 a million.
    (cost,) = of_type(entries, "cost")
    assert (cost["amount"], cost["total"], cost["currency"], cost["estimated"]) == ("0.003", "0.003", "USD", True)
    assert entries[-1].fields["cost"]["total"] == "0.003"


async def test_an_unknown_model_has_usage_and_no_cost_and_says_so(staging: Staging) -> None:
    body = pieces("openai.chat", WORDS, model="in-house-7b")
    async with serve(stream(*body)) as endpoint, staging(endpoint.url, model="in-house-7b") as stage:
        entries = await stage.run()
    assert of_type(entries, "cost") == []
    assert entries[-1].fields["cost"] is None
    assert entries[-1].fields["usage"]["output_tokens"] == 100
    (warning,) = named(entries, "warning")
    assert (warning["code"], warning["model"]) == ("price_unknown", "in-house-7b")


async def test_a_server_of_ones_own_does_not_ask_the_vendors_price(staging: Staging) -> None:
    body = pieces("openai.chat", WORDS)
    async with serve(stream(*body)) as endpoint, staging(endpoint.url, price_as="") as stage:
        entries = await stage.run()
    assert of_type(entries, "cost") == []
    assert [one["code"] for one in named(entries, "warning")] == ["price_unknown"]


async def test_tokens_arrive_while_the_model_sends(staging: Staging) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    parts = pieces("openai.chat", WORDS)
    first = 1

    async def play(exchange: Exchange) -> None:
        await exchange.head(content_type="text/event-stream")
        await exchange.send(parts[0])
        for part, word in zip(parts[first:], WORDS, strict=False):
            await exchange.send(part)
            # Not one byte more before a viewer has this word.
            assert await asyncio.wait_for(seen.get(), 10) == word
        for part in parts[first + len(WORDS) :]:
            await exchange.send(part)
        await exchange.end()

    async with serve(play) as endpoint, staging(endpoint.url) as stage:
        run_id = await stage.create()
        async with asyncio.timeout(30):
            async for entry in stage.broker.stream(run_id):
                if entry.type == "message.delta":
                    seen.put_nowait(entry.fields["text"])
        assert entry.type == "final"


async def test_bytes_may_come_one_by_one(staging: Staging) -> None:
    body = b"".join(pieces("anthropic.messages", WORDS))
    parts = [body[i : i + 1] for i in range(len(body))]
    async with serve(stream(*parts)) as endpoint, staging(endpoint.url, api="anthropic.messages") as stage:
        entries = await stage.run()
    assert texts(entries) == WORDS
    assert entries[-1].type == "final"


async def test_through_redis_the_final_message_is_the_merge_of_the_items(redis7: RedisServer, staging: Staging) -> None:
    body = pieces("anthropic.messages", WORDS * 40)
    async with (
        serve(stream(*body, pace=0.001)) as endpoint,
        staging(endpoint.url, api="anthropic.messages", store=redis7.url) as stage,
    ):
        run_id = await stage.create()
        live = await stage.follow(run_id)
        again = await stage.follow(run_id)
        record = await stage.broker.runs.get(run_id)
    final = live[-1].fields
    assert final["message"] == merged(live) == merged(again)
    assert text_of(final["message"]) == "".join(WORDS * 40)
    assert [e.seq for e in live] == list(range(1, len(live) + 1))
    assert named(live, "merge.mismatch") == []
    assert record.status == "completed"
    assert record.usage is not None
    assert record.usage["output_tokens"] == 100
    assert KEY not in repr(live) + repr(record)
