"""Runs that a worker relays from a runner service, as the WebUI's clients see them: the service's own ids, and where a
client that sends one goes on. Over real HTTP on both sides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateways import GatewayProcess
from tests.runner_service import ServiceRun
from tests.webui.front import Front
from tests.webui.wire import Block, blocks_of, chat, closed, ids_of, text_of, until_wire
from tests.workers.remote.stage import Stage, staged


@pytest.fixture
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    url = str(request.getfixturevalue("redis7").url)
    async with staged(url, tmp_path, partitions=4, heartbeat=0.4) as opened:
        yield opened


@pytest.fixture
def gateway(stage: Stage, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    process = GatewayProcess(stage.broker.settings, tmp_path).start()
    yield process  # type: ignore[misc]
    process.kill()
    assert "Traceback" not in process.log, process.log


def play(run: ServiceRun) -> None:
    """Ten events, ``event:1`` to ``event:10``: eight tokens, and the end."""
    run.whole(*(f"t{n} " for n in range(1, 9)))


@pytest.fixture
async def run_id(stage: Stage) -> str:
    """A run that was relayed to its end."""
    stage.service.play = play
    run_id = await stage.create()
    await stage.follow(run_id)
    return run_id


def service_ids(blocks: list[Block]) -> list[int]:
    """The numbers of the service's ids, in the order in which they came."""
    ids = ids_of(blocks)
    assert all(id_.startswith("event:") for id_ in ids), ids
    return [int(id_.removeprefix("event:")) for id_ in ids]


async def test_frames_carry_the_ids_that_the_service_gave(gateway: GatewayProcess, run_id: str):
    blocks = await closed(gateway, run_id)
    assert service_ids(blocks) == list(range(1, 11))
    assert text_of(blocks) == "".join(f"t{n} " for n in range(1, 9))
    assert (blocks[-1].event, blocks[-1].id) == ("stream_end", "event:10")


ALL = list(range(1, 11))


@pytest.mark.parametrize(
    ("query", "header", "expected"),
    [
        # A paired id with an after_seq that is valid: that seq.
        ({"after_event_id": "event:2", "after_seq": "5"}, None, ALL[5:]),
        ({"after_event_id": "event:4", "after_seq": "4"}, None, ALL[4:]),
        ({"after_event_id": "event:77", "after_seq": "4"}, "event:8", ALL[4:]),
        # An id in the header alone, or in `cursor`.
        ({}, "event:4", ALL[4:]),
        ({"cursor": "event:4"}, None, ALL[4:]),
        ({"cursor": "event:2"}, "event:4", ALL[4:]),
        # An explicit one that is no good, without a valid after_seq: from the start, whatever the header says.
        ({"after_event_id": "garbage"}, "event:4", ALL),
        ({"after_event_id": "event:77"}, "event:4", ALL),
        ({"after_event_id": "garbage", "after_seq": "x"}, "event:4", ALL),
        # And with one.
        ({"after_event_id": "garbage", "after_seq": "4"}, "event:8", ALL[4:]),
        ({"after_event_id": "other:9", "after_seq": "4"}, None, ALL[4:]),
        # What a native run's client does.
        ({"after_event_id": "event:4"}, "event:8", ALL[4:]),
        ({"replay": "1"}, "event:4", ALL),
        ({}, "unknown", ALL),
        ({}, None, ALL),
    ],
)
async def test_where_a_client_goes_on(
    gateway: GatewayProcess, run_id: str, query: dict[str, str], header: str | None, expected: list[int]
):
    assert service_ids(await closed(gateway, run_id, query, header=header)) == expected


async def test_the_fence_once_more_by_its_own_id(gateway: GatewayProcess, run_id: str):
    for _ in range(2):
        blocks = await closed(gateway, run_id, header="event:10")
        assert [b.event for b in blocks] == ["done", "metering", "stream_end"]
        assert ids_of(blocks) == ["event:10"]


async def test_a_client_that_comes_back_in_mid_run(gateway: GatewayProcess, stage: Stage):
    run_id = await stage.create()
    service = await stage.started()
    service.tokens("one ", "two ")
    async with await chat(gateway, run_id) as stream:
        await until_wire(stream, b"id: event:2\n")
        shown = blocks_of(stream.wire, cut=True)
    service.tokens("three ", "four ")
    # As the page does: the number behind the id's last colon, and the id.
    async with await chat(gateway, run_id, {"replay": "1", "after_seq": "2", "after_event_id": "event:2"}) as stream:
        await until_wire(stream, b"id: event:4\n")
        service.end()
        shown += blocks_of(await stream.body())
    assert text_of(shown) == "one two three four "
    assert service_ids(shown) == [1, 2, 3, 4, 5, 6]


async def test_the_status_names_the_services_id(gateway: GatewayProcess, run_id: str):
    journal = (await Front(gateway).status(run_id))["journal"]
    assert (journal["last_event_id"], journal["terminal_state"]) == ("event:10", "completed")
