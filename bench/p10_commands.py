"""P10: the Redis commands that a gateway sends per item, whatever the number of viewers and of reconnects."""

from __future__ import annotations

from collections import Counter

from bench.lab import TEXT, Lab, paced
from bench.monitor import Monitor
from bench.processes import Process
from bench.results import Result, Row
from bench.sink import Sink, Spec
from broker.items import MessageDelta

__all__ = ["ROW"]

_WRITES = {"EVALSHA", "EVAL", "SCRIPT"}
"""What this process's publisher sends."""


async def run(lab: Lab) -> Result:
    items, many = lab.size(300, 60), lab.size(200, 30)
    result = Result()
    gateway = lab.fresh()
    counts = {}
    for name, viewers, reconnects in (("1 viewer", 1, 0), ("many", many, 0), ("many, reconnecting", many, 3)):
        lab.tell(name)
        counts[name] = sum((await _commands(lab, gateway, items, viewers, reconnects, result)).values())
    lab.let_go(gateway)
    result.figures |= {f"commands an item, {name}": round(n / items, 2) for name, n in counts.items()}
    one = counts["1 viewer"]
    result.check(f"{many} viewers cost no command more than one", counts["many"] <= one * 1.1 + 5)
    result.check("reconnects cost no command", counts["many, reconnecting"] <= one * 1.1 + 5)
    return result


async def _commands(
    lab: Lab, gateway: Process, items: int, viewers: int, reconnects: int, result: Result
) -> Counter[str]:
    async with lab.run() as publisher:
        path = lab.path(publisher.run_id)
        spec = Spec(gateway.port, [path] * viewers, items)
        async with Sink(spec) as sink, Monitor(lab.redis.port, publisher.run_id) as monitor:
            async for number in paced(items, 0.005):
                await publisher.publish(MessageDelta(text=TEXT))
                if reconnects and number and number % (items // (reconnects + 1)) == 0:
                    await _reconnect(gateway, path, publisher.run_id, publisher.last, viewers)
            seen = await sink.seen()
            counts = await monitor.counts()
    result.check("every viewer got every item, in order", seen.complete == viewers and not seen.disorder)
    return Counter({name: n for name, n in counts.items() if name not in _WRITES})


async def _reconnect(gateway: Process, path: str, run_id: str, last: int, viewers: int) -> None:
    """As many viewers come back with a cursor a little behind, and leave again."""
    cursor = f"Last-Event-ID: {run_id}:{max(last - 3, 0)}"
    async with Sink(Spec(gateway.port, [path] * viewers, None, headers=[cursor])):
        pass


ROW = Row("P10", "Redis commands per item", run)
