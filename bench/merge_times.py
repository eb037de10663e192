"""The merge against its peers, in one process: ``python -m bench.merge_times --chunks N --turns N``. Prints JSON.

A process of its own, since the SDKs are installed in an environment of their own as a rule (``RUNCAST_BENCH_PYTHON``).
Each peer is measured in pairs, ours and then its own, and both start from the same:

- ``bytes``: the pieces of the response → the message.
- ``JSON``: the decoded events → the message.
- ``chunks``: the objects that each side folds (our items, the peer's chunks), made beforehand → the message.

Times are the process's own CPU. The garbage collector is off while a side is measured, and runs before.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.merge_peers import Peer, Said, installed
from bench.provider_streams import Stream, streams
from broker.draft import text_of
from broker.items import Item
from broker.merge import Merger
from workers.providers import make_adapter
from workers.providers.decoding import DONE, Decoded, StreamDecoder
from workers.providers.stream import ProviderStream

__all__ = ["main"]

Message = dict[str, Any]
_ENOUGH = 200
"""Events: streams with fewer are read as often as it takes, since a clock needs something to measure."""


@dataclass
class Case:
    """Streams of one API, measured together."""

    name: str
    api: str
    bodies: list[list[bytes]]
    right: Said | None = None
    recorded: bool = False

    def __post_init__(self) -> None:
        self.events = [_decoded(pieces) for pieces in self.bodies]
        self.count = sum(len(pieces) for pieces in self.bodies)


# Ours.


def _decoded(pieces: list[bytes]) -> list[Decoded]:
    decoder = StreamDecoder()
    told = [piece for chunk in pieces for piece in decoder.feed(chunk)] + decoder.close()
    return [piece for piece in told if isinstance(piece, Decoded)]


def of_bytes(api: str, pieces: list[bytes]) -> Message:
    stream, merger = ProviderStream(make_adapter(api)), Merger()
    for piece in pieces:
        for item in stream.feed(piece):
            merger.add(item)
    for item in stream.close():
        merger.add(item)
    return merger.message(1) or {}


def of_json(api: str, events: list[Decoded]) -> Message:
    adapter, merger = make_adapter(api), Merger()
    for event, data in events:
        for item in adapter.feed(event, data):
            merger.add(item)
    for item in adapter.close():
        merger.add(item)
    return merger.message(1) or {}


def items_of(api: str, events: list[Decoded]) -> list[Item]:
    adapter = make_adapter(api)
    return [item for event, data in events for item in adapter.feed(event, data)] + adapter.close()


def of_items(items: list[Item]) -> Message:
    merger = Merger()
    for item in items:
        merger.add(item)
    return merger.message(1) or {}


def said_by_us(message: Message) -> Said:
    calls = [(b["name"], b["arguments"]) for b in message.get("content", ()) if b.get("type") == "tool_call"]
    thoughts = (b["text"] for b in message.get("content", ()) if b.get("type") == "reasoning")
    return text_of(message), "".join(thoughts), calls


def ours(case: Case) -> dict[str, Callable[[], list[Message]]]:
    """From where → how we come from there to the messages."""
    items = [items_of(case.api, events) for events in case.events]
    return {
        "bytes": lambda: [of_bytes(case.api, pieces) for pieces in case.bodies],
        "JSON": lambda: [of_json(case.api, events) for events in case.events],
        "chunks": lambda: [of_items(told) for told in items],
    }


# A peer's.


def theirs(case: Case, peer: Peer) -> dict[str, Callable[[], list[Any]]]:
    """The same ways with a peer, as far as it has them."""
    values = [[event.data for event in events if event.event != DONE] for events in case.events]
    chunks = [list(peer.prepare(told)) for told in values]
    ways: dict[str, Callable[[], list[Any]]] = {"chunks": lambda: [peer.fold(told) for told in chunks]}
    if not peer.folds_only:
        ways["JSON"] = lambda: [peer.fold(peer.prepare(told)) for told in values]
    if (parse := peer.parse) is not None:
        ways["bytes"] = lambda: [peer.fold(parse(pieces)) for pieces in case.bodies]
    return ways


# Both.


def cpu(way: Callable[[], Any], again: int) -> float:
    """Seconds for one call."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        for _ in range(again):
            way()
        return (time.process_time() - began) / again
    finally:
        gc.enable()


def pairs(case: Case, peer: Peer, turns: int) -> Iterator[dict[str, Any]]:
    """How a peer compares, for each way that it has."""
    we, they = ours(case), theirs(case, peer)
    again = max(1, _ENOUGH // case.count)
    for start, way in they.items():
        told = [(cpu(we[start], again), cpu(way, again)) for _ in range(turns)]
        yield {
            "case": case.name,
            "from": start,
            "peer": peer.name,
            "ours": statistics.median(our for our, _ in told) / case.count * 1e6,
            "theirs": statistics.median(their for _, their in told) / case.count * 1e6,
            "ratio": statistics.median(their / our for our, their in told),
        }


def readable(case: Case, peer: Peer) -> Case:
    """Recordings that the provider's own SDK reads: it raises where a stream ends in an error, or lacks something."""
    kept = []
    for pieces in case.bodies:
        try:
            peer.fold(peer.parse(pieces) if peer.parse is not None else ())
        except Exception:
            continue
        kept.append(pieces)
    return Case(f"{case.name} ({len(kept)} of {len(case.bodies)})", case.api, kept, recorded=True)


def made(chunks: int) -> list[Case]:
    return [Case(s.name, s.api, [s.pieces], _said(s)) for s in streams(chunks)]


def _said(stream: Stream) -> Said:
    return stream.text, stream.reasoning, stream.calls


def recordings(root: Path) -> list[Case]:
    """The recorded streams beside the repository, those of an API together."""
    bodies: dict[str, list[list[bytes]]] = {}
    for told in sorted(root.glob("*/*.expected.json")):
        facts = json.loads(told.read_text())
        file = told.parent / facts["file"]
        end = b"\n" if file.suffix == ".jsonl" else b"\n\n"
        pieces = [piece + end for piece in file.read_bytes().replace(b"\r\n", b"\n").split(end) if piece.strip()]
        bodies.setdefault(facts["api"], []).append(pieces)
    return [Case(f"recorded {api}", api, bodies[api], recorded=True) for api in sorted(bodies)]


def alone(case: Case, turns: int) -> dict[str, Any]:
    """What we need ourselves, where nobody is there to compare with."""
    again = max(1, _ENOUGH // case.count)
    told = {start: [cpu(way, again) for _ in range(turns)] for start, way in ours(case).items()}
    return {"case": case.name, **{s: statistics.median(t) / case.count * 1e6 for s, t in told.items()}}


def right(case: Case, ways: dict[str, Callable[[], list[Any]]], said: Callable[[Any], Said]) -> bool:
    """Every way comes to what the stream tells. Of recordings that is for the tests to say."""
    return case.right is None or all([said(m) for m in way()] == [case.right] for way in ways.values())


def measure(cases: list[Case], peers: list[Peer], turns: int, tell: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {"alone": [], "pairs": [], "wrong": [], "lacking": []}
    for case in cases:
        those = [p for p in peers if p.api == case.api and (p.own or not case.recorded)]
        if case.recorded and those:
            case = readable(case, those[0])
        tell(case.name)
        if not right(case, ours(case), said_by_us):
            found["wrong"].append(case.name)
        found["alone"].append(alone(case, turns))
        for peer in those:
            tell(f"{case.name}: {peer.name}")
            if right(case, theirs(case, peer), peer.said):
                found["pairs"] += pairs(case, peer, turns)
            else:
                found["lacking"].append({"case": case.name, "peer": peer.name})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.merge_times")
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--recordings", type=Path, default=None)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    peers = [] if options.no_peers else installed()
    gc.freeze()  # the SDKs' own modules need not be walked before each measurement
    cases = made(options.chunks) + (recordings(options.recordings) if options.recordings else [])
    found = measure(cases, peers, options.turns, lambda what: print(what, file=sys.stderr, flush=True))
    print(json.dumps({"python": sys.version.split()[0], "peers": sorted({p.name for p in peers}), **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
