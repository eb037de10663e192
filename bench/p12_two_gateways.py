"""P12: two gateway processes behind nginx, twice the viewers: what Redis is asked for."""

from __future__ import annotations

from collections import Counter

from bench import processes
from bench.lab import TEXT, Lab, paced
from bench.monitor import Monitor
from bench.results import Result, Row
from bench.sink import Sink, Spec
from broker.items import MessageDelta

__all__ = ["ROW"]

_PROXY = """
upstream gateways {{ {servers} }}
server {{ listen 127.0.0.1:{{port}} backlog=4096;
  location / {{ proxy_pass http://gateways; proxy_http_version 1.1; proxy_set_header Connection "";
    proxy_buffering off; proxy_read_timeout 1h; }} }}
"""
_WRITES = {"EVALSHA", "EVAL", "SCRIPT"}


async def run(lab: Lab) -> Result:
    viewers, items = lab.size(100, 20), lab.size(300, 60)
    result = Result()
    counts: list[Counter[str]] = []
    for number in (1, 2):
        gateways = [lab.fresh(), *[lab.new_gateway() for _ in range(number - 1)]]
        servers = " ".join(f"server 127.0.0.1:{gateway.port};" for gateway in gateways)
        proxy = lab.start(processes.nginx(lab.directory, _PROXY.format(servers=servers)))
        lab.tell(f"{number} gateway, {number * viewers} viewers")
        counts.append(await _commands(lab, proxy.port, number * viewers, items, result))
        lab.let_go(gateways[0])
        for process in (proxy, *gateways[1:]):
            process.stop()
    one, two = counts
    result.figures |= {
        "commands an item, 1 gateway": round(one.total() / items, 2),
        "commands an item, 2 gateways": round(two.total() / items, 2),
    }
    result.check("one more read an item, of the second process, at most", two["XREAD"] <= 2 * items + 10)
    others = two.total() - two["XREAD"] - (one.total() - one["XREAD"])
    result.check("and nothing else per viewer", others <= 10)
    return result


async def _commands(lab: Lab, port: int, viewers: int, items: int, result: Result) -> Counter[str]:
    async with lab.run() as publisher:
        paths = [lab.path(publisher.run_id)] * viewers
        async with Sink(Spec(port, paths, items)) as sink, Monitor(lab.redis.port, publisher.run_id) as monitor:
            async for _ in paced(items, 0.005):
                await publisher.publish(MessageDelta(text=TEXT))
            seen = await sink.seen()
            counts = await monitor.counts()
    result.check("every viewer got every item, in order", seen.complete == viewers and not seen.disorder)
    return Counter({name: n for name, n in counts.items() if name not in _WRITES})


ROW = Row("P12", "two gateway processes behind nginx, 2 × viewers", run)
