"""While Redis is away a stream is no error, which would end an EventSource for good; requests say when to come back."""

from __future__ import annotations

from pathlib import Path

from broker import api
from broker.settings import Settings
from tests.gateways import GatewayProcess, say, until, writing
from tests.servers import RedisServer
from tests.webui.front import Front
from tests.webui.wire import blocks_of, chat, closed, numbers


async def test_redis_goes_and_comes_back(redis_server: RedisServer, namespace: str, tmp_path: Path):
    settings = Settings(
        redis_url=redis_server.url, namespace=namespace, partitions=4, request_deadline=0.5, retry_ms=300
    )
    gateway = GatewayProcess(settings, tmp_path).start()
    front = Front(gateway)
    try:
        patient = settings.model_copy(update={"request_deadline": 10.0})
        async with api.open(settings=patient) as broker, writing(broker) as p:
            await say(p, 3, end=True)
            session = await broker.sessions.create()
            redis_server.stop()
            for run_id in (p.run_id, "unknown"):  # nobody can know now which of them there is
                [block] = await closed(gateway, run_id, header=f"{run_id}:2")
                assert (block.event, block.id) == ("", None)
                assert block.retry is not None
                assert 150 <= block.retry <= 450
            async with await chat(gateway, p.run_id, method="HEAD") as stream:
                assert stream.status == 200
            for status, answer in (
                await front.get(f"/api/chat/stream/status?stream_id={p.run_id}"),
                await front.post(f"/api/chat/cancel?stream_id={p.run_id}"),
                await front.start(session.session_id),
                await front.post("/api/clarify/respond", {"session_id": session.session_id, "response": "x"}),
            ):
                assert (status, bool(answer["error"])) == (503, True)
            redis_server.start()

            async def goes_on() -> list[int]:
                async with await chat(gateway, p.run_id, header=f"{p.run_id}:2") as stream:
                    return numbers(blocks_of(await stream.body()), p.run_id)

            await until(goes_on)  # as the client does that was told when to come back
            assert await goes_on() == [3, 4]
    finally:
        gateway.kill()
    assert "Traceback" not in gateway.log
