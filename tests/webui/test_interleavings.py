"""Whatever order things happen in: every viewer gets the fence or one recovery signal, and no frame comes twice.

The whole gateway without a network: viewers come with all sorts of cursors, read at their pace, leave and come back,
while the log grows and loses its head.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker import api
from broker.api import Broker
from broker.items import Cancelled, Failed, Final
from broker.publisher import Publisher
from broker.settings import Settings
from gateway.app import Gateway, create_app
from tests.gateways import say, until, writing
from tests.webui.wire import CLOSING, Block, blocks_of, ids_of, trim

FENCES = {"final": Final(), "failed": Failed(code="provider_error", message="m"), "cancelled": Cancelled()}
WAYS = ["header", "page", "none"]


class Viewer:
    """A client with its position, over as many connections as it makes."""

    def __init__(self, gateway: Gateway, run_id: str, way: str, cursor: dict[str, str], slow: bool) -> None:
        self.gateway, self.run_id, self.way, self.slow = gateway, run_id, way, slow
        self.connections: list[Connection] = []
        self.first = cursor
        self.seen: list[str] = []
        """The ids of the frames of all connections, as a client that goes on from its cursor has joined them."""

    def connect(self) -> None:
        query = dict(self.first if not self.connections else {})
        header = query.pop("header", "")
        if self.connections:
            self._join()
            last = self.seen[-1] if self.seen else ""
            if self.way == "page":
                number = last.rpartition(":")[2] or "0"
                query = {"replay": "1", "after_seq": number, "after_event_id": last}
            elif self.way == "header":
                header = last
            else:
                self.seen = []  # it begins anew, and shows anew
        self.connections.append(Connection(self.gateway, self.run_id, query, header, self.slow))

    def leave(self) -> None:
        if self.connections and not self.connections[-1].task.done():
            self.connections[-1].gone.set()

    @property
    def recovered(self) -> bool:
        return any(c.recovered for c in self.connections)

    def _join(self) -> None:
        self.seen += ids_of(self.connections[-1].blocks)

    def check(self, fence_id: str) -> None:
        last = self.connections[-1]
        assert last.complete
        closing = [block for block in last.blocks if block.event in CLOSING]
        assert len(closing) == 1
        assert last.blocks[-1] == closing[0]
        assert last.recovered == (closing[0].id is None)
        assert last.recovered or closing[0].id == fence_id
        self._join()
        numbers = [int(id_.rpartition(":")[2]) for id_ in self.seen]
        fence = int(fence_id.rpartition(":")[2])
        while numbers[-2:] == [fence, fence]:  # it came back with all of it, and was told so
            numbers.pop()
        assert len(set(numbers)) == len(numbers), numbers
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True


class Connection:
    """One request, driven by hand. ``complete``: the body came to its end, and did not just break off."""

    def __init__(self, gateway: Gateway, run_id: str, query: dict[str, str], header: str, slow: bool) -> None:
        self.wire = b""
        self.status = 0
        self.complete = False
        self.gone = asyncio.Event()
        self._slow = slow
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": "/api/chat/stream",
            "query_string": urlencode({"stream_id": run_id, **query}).encode(),
            "headers": [(b"last-event-id", header.encode())] if header else [],
        }
        self.task = asyncio.create_task(gateway(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.gone.is_set():
            raise OSError("the peer is gone")
        if self._slow:
            await asyncio.sleep(0.003)
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.wire += message["body"]
            self.complete = not message["more_body"]

    @property
    def blocks(self) -> list[Block]:
        return [block for block in blocks_of(self.wire) if block.comment is None]

    @property
    def recovered(self) -> bool:
        return any(b.data.get("recovery_control") for b in self.blocks if b.event == "apperror")


def cursors() -> st.SearchStrategy[dict[str, str]]:
    """``RUN`` stands for the run's id."""
    numbers = st.integers(-2, 40)
    value = st.one_of(numbers.map(lambda n: f"RUN:{n}"), st.sampled_from(["other:3", "x", "RUN:x", " ", ""]))
    return st.one_of(
        st.just({}),
        st.fixed_dictionaries({"header": value}),
        st.fixed_dictionaries({"after_event_id": value}, optional={"after_seq": numbers.map(str), "header": value}),
        st.fixed_dictionaries({"after_seq": st.one_of(numbers.map(str), st.just("x"))}, optional={"header": value}),
        st.fixed_dictionaries({"replay": st.sampled_from(["0", "1"])}, optional={"header": value}),
    )


STEPS = st.one_of(
    st.tuples(st.just("say"), st.integers(1, 8)),
    st.tuples(st.just("say"), st.integers(1, 8)),
    st.tuples(st.just("trim"), st.integers(1, 6)),
    st.tuples(st.just("join"), st.tuples(st.sampled_from(WAYS), cursors(), st.booleans())),
    st.tuples(st.just("join"), st.tuples(st.sampled_from(WAYS), cursors(), st.booleans())),
    st.tuples(st.just("back"), st.integers(0, 5)),
    st.tuples(st.just("yield"), st.integers(0, 3)),
)
PLAYS = st.tuples(st.lists(STEPS, min_size=1, max_size=14), st.sampled_from(list(FENCES)), st.booleans())


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(PLAYS)
def test_every_viewer_gets_the_fence_or_one_recovery_signal(play: Any):
    asyncio.run(_play(*play))


@pytest.mark.long
@settings(max_examples=1_500, suppress_health_check=list(HealthCheck))
@given(PLAYS)
def test_the_same_at_length(play: Any):
    asyncio.run(_play(*play))


async def _play(steps: list[tuple[str, Any]], fence: str, trimmed_at_the_end: bool) -> None:
    small = Settings(
        redis_url=f"memory:{uuid4().hex}",
        namespace="t",
        partitions=1,
        heartbeat=30.0,
        window_bytes=300,
        read_items=3,
        read_bytes=1024,
        high_water=1024,
        block=0.2,
    )
    async with api.open(settings=small) as broker, writing(broker) as p:
        gateway = create_app(broker=broker)
        stage = Stage(gateway, broker, p)
        for step, given in steps:
            await getattr(stage, f"do_{step}")(given)
        await p.publish(FENCES[fence])
        await p.flush()
        if trimmed_at_the_end:
            await stage.do_trim(2)
        for way in WAYS:
            await stage.do_join((way, {}, False))
        await stage.ended(f"{p.run_id}:{p.last}")


class Stage:
    def __init__(self, gateway: Gateway, broker: Broker, p: Publisher) -> None:
        self.gateway, self.broker, self.p = gateway, broker, p
        self.viewers: list[Viewer] = []

    async def do_say(self, count: int) -> None:
        await say(self.p, *(f"{n} ".ljust(60, "x") for n in range(count)))

    async def do_trim(self, kept: int) -> None:
        await trim(self.broker, self.p.run_id, max(self.p.last - kept + 1, 1))

    async def do_join(self, given: tuple[str, dict[str, str], bool]) -> None:
        way, cursor, slow = given
        mine = {name: value.replace("RUN", self.p.run_id) for name, value in cursor.items()}
        viewer = Viewer(self.gateway, self.p.run_id, way, mine, slow)
        viewer.connect()
        self.viewers.append(viewer)

    async def do_back(self, number: int) -> None:
        """One of those who watch loses his connection, and comes back."""
        watching = [v for v in self.viewers if not v.connections[-1].task.done()]
        if watching:
            viewer = watching[number % len(watching)]
            viewer.leave()
            await until(lambda: viewer.connections[-1].task.done())
            viewer.connections[-1].task.exception()
            viewer.connect()

    async def do_yield(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0.002)

    async def ended(self, fence_id: str) -> None:
        async with asyncio.timeout(40):
            await asyncio.gather(*(viewer.connections[-1].task for viewer in self.viewers))
        for viewer in self.viewers:
            assert viewer.connections[-1].status == 200
            viewer.check(fence_id)
