"""P3: replay of stored runs over HTTP, CPU of the gateway per item, against a loop of XRANGE that throws away what it
read, and against peers that keep what they sent.

Each of our runs is replayed once, so no read and no rendering is shared; the peers share nothing anyway. All are read
as events; one that can also send everything as one body without events is measured so as well, as a figure.
"""

from __future__ import annotations

import time
from statistics import median

import redis.asyncio

from bench import peers
from bench.lab import Lab
from bench.peers import Channel, Load, Peer
from bench.results import Result, Row, paired
from bench.sink import Sink, Spec

__all__ = ["ROW"]

_PAGE = 1_000
_PEER_RUNS, _PEER_ITEMS, _PEER_VIEWERS = 2, 5_000, 3


async def run(lab: Lab) -> Result:
    result = Result()
    runs, items, turns = lab.size(10, 2), lab.size(10_000, 1_500), lab.size(5, 1)
    spent: dict[str, list[float]] = {"runcast": [], "redis-py's raw reader": [], "our link": []}
    others = [] if lab.short else [await _store(lab, peer) for peer in peers.that_keep(lab, result.notes.append)]
    for turn in range(turns):
        lab.tell(f"turn {turn + 1} of {turns}: storing {runs} runs")
        ids = [await lab.stored(items) for _ in range(runs)]
        lab.tell(f"turn {turn + 1} of {turns}: replay")
        total = runs * (items + 1)
        spent["runcast"].append(await _replay(lab, ids, items + 1, result) / total * 1e6)
        spent["redis-py's raw reader"].append(await _read_raw(lab, ids) / total * 1e6)
        spent["our link"].append(await _read_link(lab, ids) / total * 1e6)
        for other in others:
            lab.tell(f"turn {turn + 1} of {turns}: {other.peer.name}")
            for name, cost in (await other.replay(result)).items():
                spent.setdefault(name, []).append(cost)
    _tell(result, spent, [other.peer.name for other in others])
    return result


def _tell(result: Result, spent: dict[str, list[float]], others: list[str]) -> None:
    result.figures |= {f"µs an item, {name}": round(median(costs), 2) for name, costs in spent.items()}
    ratios = {name: paired(spent["runcast"], costs) for name, costs in spent.items()}
    result.at_most("CPU per item / XRANGE through the raw reader", ratios["redis-py's raw reader"], 2.5)
    for name in others:
        result.at_most(f"CPU per item / {name}", ratios[name], 0.1)


class _Stored:
    """Streams that a peer keeps."""

    def __init__(self, peer: Peer, channels: list[Channel]) -> None:
        self.peer, self._channels = peer, channels

    async def replay(self, result: Result) -> dict[str, float]:
        """µs an item: by the peer's name, and of one body without events where there is such."""
        name, channels = self.peer.name, self._channels
        found = {name: await self._read([channel.path for channel in channels], result)}
        if all(channel.whole for channel in channels):
            found[f"{name}, one body"] = await self._read([channel.whole for channel in channels], result)
        return found

    async def _read(self, paths: list[str], result: Result) -> float:
        process, headers = self.peer.process, self._channels[0].headers
        before = process.cpu()
        paths = paths * _PEER_VIEWERS
        spec = Spec(process.port, paths, _PEER_ITEMS, checked=0, mark=self.peer.mark, headers=headers)
        async with Sink(spec) as sink:
            seen = await sink.seen()
        if seen.complete < len(paths):
            result.notes.append(f"{self.peer.name} did not replay everything")
        return (process.cpu() - before) / max(seen.frames, 1) * 1e6


async def _store(lab: Lab, peer: Peer) -> _Stored:
    """Items one by one, as tokens come; kept once a viewer has had them all."""
    channels = []
    for number in range(_PEER_RUNS):
        lab.tell(f"storing run {number + 1} of {_PEER_RUNS} at {peer.name}")
        async with peer.channel(Load(1, _PEER_ITEMS, 1, 0.0)) as channel:
            for seq in range(1, _PEER_ITEMS + 1):
                await channel.send(seq, 1)
            spec = Spec(
                peer.process.port, [channel.path], _PEER_ITEMS, mark=peer.mark, headers=channel.headers, checked=0
            )
            async with Sink(spec) as sink:
                await sink.seen()
        channels.append(channel)
    return _Stored(peer, channels)


async def _replay(lab: Lab, ids: list[str], frames: int, result: Result) -> float:
    gateway = lab.gateway
    before = gateway.cpu()
    async with Sink(Spec(gateway.port, [lab.path(run_id) for run_id in ids], frames, checked=2)) as sink:
        seen = await sink.seen()
    result.check("everything came", seen.frames == len(ids) * frames)
    result.check("in order, each once", not seen.disorder)
    return gateway.cpu() - before


async def _read_raw(lab: Lab, ids: list[str]) -> float:
    broker = await lab.broker()
    connection = redis.asyncio.Connection(port=lab.redis.port, protocol=2)
    await connection.connect()  # type: ignore[no-untyped-call]
    began = time.process_time()
    for run_id in ids:
        after = 0
        while True:
            start = b"%d-0" % (after + 1)
            await connection.send_command("XRANGE", broker.log.items_key(run_id), start, "+", "COUNT", _PAGE)
            page = await connection.read_response()
            if not page:
                break
            after = int(page[-1][0][:-2])
    spent = time.process_time() - began
    await connection.disconnect()
    return spent


async def _read_link(lab: Lab, ids: list[str]) -> float:
    broker = await lab.broker()
    link = await broker.store.link()
    began = time.process_time()
    for run_id in ids:
        key, after = broker.log.items_key(run_id), 0
        while page := await link.call(b"XRANGE", key, b"%d-0" % (after + 1), b"+", b"COUNT", _PAGE, deadline=5.0):
            after = int(page[-1][0][:-2])
    spent = time.process_time() - began
    await link.aclose()
    return spent


ROW = Row("P3", "replay of stored runs over HTTP, CPU per item", run)
