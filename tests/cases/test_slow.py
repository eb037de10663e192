"""Viewers that do not read, and viewers that join late: cases 10 and 23 (the server's side)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.settings import Settings
from tests.cases.wire import drunk, ended, opened, seqs_of
from tests.gateways import GatewayProcess, Response, say, until, writing
from tests.servers import RedisServer
from tests.sleepers import Sleeper

HIGH_WATER = 64 << 10
TEXT = 16_000
EACH = HIGH_WATER + (64 << 10)
"""What waits for one viewer at most: the mark, and the payload that went beyond it."""
MARGIN = 16 << 20
"""Of the process's memory, for everything but what waits for viewers."""


# Case 10: 50 viewers never read, 50 read 1 kB/s, 50 healthy; 60 MiB published; one peer vanished without FIN.


@pytest.mark.parametrize(
    ("each", "mebibytes", "stall_limit"),
    [(6, 6, 3.0), pytest.param(50, 60, 90.0, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
async def test_case_10_viewers_that_do_not_read_cost_a_bounded_amount_and_stop_nobody(
    redis7: RedisServer, namespace: str, tmp_path: Path, each: int, mebibytes: int, stall_limit: float
):
    settings = Settings(
        redis_url=redis7.url, namespace=namespace, partitions=4, high_water=HIGH_WATER, stall_limit=stall_limit
    )
    gateway = GatewayProcess(settings, tmp_path)
    await asyncio.to_thread(gateway.start)
    try:
        async with api.open(settings=settings) as broker, writing(broker) as p:
            await joined(gateway, p.run_id)  # what is made once is made
            silent, crawling = [[await Sleeper.open(gateway.port, p.run_id) for _ in range(each)] for _ in range(2)]
            vanished = await Sleeper.open(gateway.port, p.run_id)
            healthy = [asyncio.create_task(drunk(await opened(gateway, p.run_id), 200)) for _ in range(each)]
            await gateway.reads("runcast_viewers", 3 * each + 1)
            vanished.vanish()
            sips = [asyncio.create_task(sip(sleeper)) for sleeper in crawling]
            before = grown = gateway.number("process_resident_memory_bytes")
            last = 0
            for n in range((mebibytes << 20) // TEXT):
                await p.publish(MessageDelta(text=f"{n} ".ljust(TEXT, "x")))
                if n % 200 == 0:
                    grown = max(grown, await asyncio.to_thread(gateway.number, "process_resident_memory_bytes"))
            last = await say(p, end=True)
            whole = (list(range(1, last + 1)), True)
            assert await asyncio.gather(*healthy) == [whole] * each  # nobody waited for anybody
            assert gateway.number("runcast_viewers_demoted_total") >= 2 * each + 1
            grown = max(grown, gateway.number("process_resident_memory_bytes"))
            assert grown - before <= (2 * each + 1) * EACH + MARGIN
            for sipping in sips:
                sipping.cancel()
            assert await asyncio.gather(*[resumed(gateway, sleeper) for sleeper in silent]) == [whole[0]] * each
            crawled = [await sipped for sipped in sips]
            assert await asyncio.gather(*[returned(gateway, p.run_id, wire) for wire in crawled]) == [whole[0]] * each
            for sleeper in crawling:
                sleeper.close()
            # The one that vanished is counted as cut, and so is whoever else took nothing for too long.
            await until(lambda: asyncio.to_thread(nobody_is_left, gateway), stall_limit + 20)
            assert gateway.number('runcast_viewers_cut_total{reason="stalled"}') >= 1
    finally:
        gateway.kill()
    assert "Traceback" not in gateway.log


async def joined(gateway: GatewayProcess, run_id: str) -> None:
    async with await opened(gateway, run_id):
        await gateway.reads("runcast_viewers", 1)
    await gateway.reads("runcast_viewers", 0)


def nobody_is_left(gateway: GatewayProcess) -> bool:
    return gateway.number("runcast_viewers") == 0 and gateway.number("runcast_viewers_waiting_bytes") == 0


async def sip(sleeper: Sleeper) -> bytes:
    """1 kB a second until it is cancelled, or cut and forgotten: → what came."""
    wire = b""
    try:
        while True:
            wire += await sleeper.sip(1024)
            await asyncio.sleep(1.0)
    except (asyncio.CancelledError, ConnectionError):
        return wire


async def resumed(gateway: GatewayProcess, sleeper: Sleeper) -> list[int]:
    """What a sleeper gets that wakes up; where it was cut, with what it gets when it comes back."""
    async with await sleeper.wake() as woken:
        seqs, end = await drunk(woken, 200)
    if not end:
        async with await opened(gateway, sleeper.run_id, seqs[-1] if seqs else None) as back:
            more, end = await drunk(back, 200)
        seqs += more
    assert end
    return seqs


async def returned(gateway: GatewayProcess, run_id: str, wire: bytes) -> list[int]:
    """The same for one that has these bytes of a response, cut anywhere, and makes a new connection."""
    seqs = seqs_of(wire[: wire.rfind(b"\n\n") + 2])
    async with await opened(gateway, run_id, seqs[-1] if seqs else None) as back:
        more, end = await drunk(back, 200)
    assert end
    return seqs + more


# Case 23: join of a run with 10,000 deltas: compacted catch-up.


async def test_case_23_a_late_joiner_gets_the_text_and_not_each_token(gateway: GatewayProcess, broker: Broker):
    words = [f"w{n} " for n in range(10_000)]
    async with writing(broker) as p:
        await say(p, *words)
        reads, renders = (gateway.number(f"runcast_{name}_total") for name in ("range_reads", "renders"))
        joining = [await opened(gateway, p.run_id, None, "compact=1") for _ in range(10)]
        await asyncio.gather(*[stream.upto(10_000) for stream in joining])
        assert gateway.number("runcast_range_reads_total") - reads <= 2 * 11, "they share what is read"
        assert gateway.number("runcast_renders_total") - renders <= 2 * 11, "and what is rendered"
        await say(p, "and ", "live", end=True)
        await asyncio.gather(*[stream.body() for stream in joining])
    plain = (await ended(gateway, p.run_id)).wire
    assert seqs_of(plain) == list(range(1, 10_004))
    for stream in joining:
        assert len(stream.frames) <= plain.count(b"\n\n") // 100
        assert len(stream.wire) <= len(plain) // 10
        assert text_of(stream) == "".join([*words, "and ", "live"])
        assert stream.seqs[-3:] == [10_001, 10_002, 10_003], "what is live comes as it was made"
        stream.leave()


def text_of(stream: Response) -> str:
    return "".join(f.data["text"] for f in stream.frames if f.event == "message.delta")
