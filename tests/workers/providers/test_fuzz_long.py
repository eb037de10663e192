"""Streams made by chance, right ones and damaged ones, against decoders, adapters and the merge.

Ten minutes as a ``long`` test, a moment of the same in each run of the others. ``RUNCAST_FUZZ_SECONDS`` says how long
the long one takes, ``RUNCAST_FUZZ_SEED`` where it begins: stream n of a seed is the same on every machine.

A right stream comes to what its maker says. Of any stream: nothing raises; every split gives the same items; each item
can be stored and read back; a merge of a prefix and then the rest is the merge of all; a window that is compacted
changes no message; the deltas of the usage sum up to its total; and none takes long. Faults are collected, one of a
kind, made small, and printed as bytes.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

from broker.compact import compact
from broker.items import Item, decode, encode
from broker.merge import Merger, merge_entries
from tests.broker.streams import log_of
from tests.workers.providers import recordings
from tests.workers.providers.chance import Made
from tests.workers.providers.damage import damage_bytes, damage_events
from tests.workers.providers.generated import APIS, framed, make
from tests.workers.providers.test_properties import check, fold, messages
from workers.merged import MergedStream

SECONDS = float(os.environ.get("RUNCAST_FUZZ_SECONDS", "600"))
SEED = int(os.environ.get("RUNCAST_FUZZ_SEED", "0"))
_CPU = 2.0
"""Seconds for one stream; the longest has some hundred kilobytes."""
_SHRINKING = 15.0
_KINDS = 20


@dataclass
class Subject:
    """``made`` where the stream is right."""

    api: str
    stream: bytes
    made: Made | None = None


@dataclass
class Tally:
    streams: Counter[str] = field(default_factory=Counter)
    events: int = 0
    bytes: int = 0
    findings: dict[str, str] = field(default_factory=dict)
    """Kind of fault → how to see it again."""

    def __str__(self) -> str:
        each = ", ".join(f"{api} {count}" for api, count in sorted(self.streams.items()))
        total = f"{self.streams.total()} streams ({each}), {self.events} items, {self.bytes / 1e6:.1f} MB"
        return f"{total}, {len(self.findings)} kinds of fault"


def subject(rng: Random, recorded: list[Subject]) -> Subject:
    """A stream of any kind: right, damaged in its events, in its bytes, or read as another API's."""
    api = rng.choice(APIS)
    if recorded and rng.random() < 0.15:
        known = rng.choice(recorded)
        return Subject(known.api if rng.random() < 0.9 else api, damage_bytes(known.stream, rng))
    made = make(api, rng)
    if rng.random() < 0.15:
        return Subject(api, framed(made.events, rng), made)
    others = make(rng.choice([api, rng.choice(APIS)]), rng).events
    stream = damage_bytes(framed(damage_events(made.events, others, rng), rng), rng)
    return Subject(api if rng.random() < 0.95 else rng.choice(APIS), stream)


# What must hold.


def read(api: str, chunks: Iterator[bytes] | list[bytes]) -> tuple[list[Item], MergedStream]:
    stream = MergedStream(api)
    return [item for chunk in chunks for item in stream.feed(chunk)] + stream.close(), stream


def holds(subject: Subject, rng: Random) -> list[Item]:
    """The stream's items. Raises where something does not hold."""
    began = time.process_time()
    items, merged = read(subject.api, [subject.stream])
    spent = time.process_time() - began
    assert spent < _CPU, f"{spent:.1f} s for {len(subject.stream)} bytes"
    msgspec.json.encode(merged.result())
    if subject.made is not None:
        tells(subject.made, merged)
    same_in_any_split(subject, items, merged, rng)
    can_be_stored(items)
    check(items)
    merges_alike(items, rng)
    return items


def tells(made: Made, merged: MergedStream) -> None:
    assert merged.error is None, merged.error
    choices = merged.result()["choices"]
    assert {choice["index"]: choice["text"] for choice in choices} == made.texts
    calls = {c["index"]: [(call["name"], call["arguments_json"]) for call in c["tool_calls"]] for c in choices}
    assert calls == made.calls


def same_in_any_split(subject: Subject, items: list[Item], merged: MergedStream, rng: Random) -> None:
    stream = subject.stream
    for cuts in _splits(len(stream), rng):
        chunks = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
        other = MergedStream(subject.api)
        told = [stored for chunk in chunks for stored in _stored(other.feed(chunk))]  # as each is, when it is told
        assert [*told, *_stored(other.close())] == _stored(items), f"split at {cuts}"
        assert (other.error, msgspec.json.encode(other.result())) == (
            merged.error,
            msgspec.json.encode(merged.result()),
        )


def _splits(length: int, rng: Random) -> Iterator[list[int]]:
    yield sorted(rng.randint(0, length) for _ in range(rng.randint(1, 8)))
    if length < 600 or rng.random() < 0.02:
        yield list(range(1, length))


def _stored(items: list[Item]) -> list[tuple[str, bytes]]:
    """By their bytes: NaN is not equal to itself."""
    return [(stored.type, stored.data) for stored in (encode(item, ts=1.0) for item in items)]


def can_be_stored(items: list[Item]) -> None:
    for type_, data in _stored(items):
        again = encode(decode(type_, data), ts=1.0)
        assert (again.type, again.data) == (type_, data)


def merges_alike(items: list[Item], rng: Random) -> None:
    whole = messages(fold(items))
    merger = fold(items[: (cut := rng.randint(0, len(items)))])
    merger.message()
    merger.partial()
    for item in items[cut:]:
        merger.add(item)
    assert messages(merger) == whole
    assert merger.usage == fold(items).usage
    careful = Merger()
    for item in items:
        careful._hot_key = None  # no short cut for the next token of the same block
        careful.add(item)
    assert messages(careful) == whole
    entries = log_of(items)
    start = rng.randint(0, len(entries))
    end = rng.randint(start, len(entries))
    window = compact(entries[start:end])
    assert messages(merge_entries([*entries[:start], *window, *entries[end:]])) == messages(merge_entries(entries))
    if window:  # a viewer that was cut behind one of the merged entries
        upto = rng.randrange(len(window))
        rest = [entry for entry in entries if entry.seq > window[upto].seq]
        resumed = merge_entries([*entries[:start], *window[: upto + 1], *rest])
        assert messages(resumed) == messages(merge_entries(entries))


# Faults, made small.


def fault_of(subject: Subject, seed: str) -> tuple[str, str] | None:
    """The kind of fault, by where it was found, and its text; None where all holds."""
    try:
        holds(subject, Random(seed))
    except Exception as error:
        place = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename][-1]
        kind = f"{subject.api}: {type(error).__name__} at {os.path.basename(place.filename)}:{place.lineno}"
        return kind, str(error)[:2_000]
    return None


def shrink(subject: Subject, seed: str, kind: str) -> Subject:
    """The least bytes found within a while that have the same fault."""
    if subject.made is not None:
        return subject  # cut, it is no right stream
    end = time.monotonic() + _SHRINKING
    best, size = subject, max(len(subject.stream) // 2, 1)
    while time.monotonic() < end:
        for at in range(0, len(best.stream), size):
            less = Subject(best.api, best.stream[:at] + best.stream[at + size :])
            found = fault_of(less, seed)
            if found is not None and found[0] == kind:
                best = less
                break
            if time.monotonic() > end:
                break
        else:
            if size == 1:
                break
            size = max(size // 2, 1)
    return best


def fuzz(tally: Tally, recorded: list[Subject], going_on: Callable[[int], bool], seed: int) -> None:
    """Streams, one after another, as long as ``going_on`` says so of the number of the next."""
    for number in itertools.count():
        if not going_on(number) or len(tally.findings) >= _KINDS:
            return
        name = f"{seed}:{number}"
        told = subject(Random(name), recorded)
        tally.streams[told.api] += 1
        tally.bytes += len(told.stream)
        found = fault_of(told, name)
        if found is None:
            tally.events += len(read(told.api, [told.stream])[0])
        elif found[0] not in tally.findings:
            small = shrink(told, name, found[0])
            text = (fault_of(small, name) or found)[1]
            tally.findings[found[0]] = f"stream {name}\n  read({small.api!r}, [{small.stream!r}])\n  {text}"


def report(tally: Tally) -> str:
    return "\n".join([str(tally), *(f"- {kind}, {told}" for kind, told in tally.findings.items())])


def recorded_streams() -> list[Subject]:
    return [Subject(api, recordings.load(name).stream) for name, api in recordings.apis().items()]


def test_a_moment_of_it() -> None:
    """So that what finds faults is itself tried in each run; always the same streams."""
    tally = Tally()
    fuzz(tally, recorded_streams(), lambda number: number < 400, seed=-1)
    assert not tally.findings, report(tally)
    assert set(tally.streams) == set(APIS)
    assert tally.events > 2_000


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 200)
def test_ten_minutes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    tally, began, told = Tally(), time.monotonic(), 0.0

    def going_on(number: int) -> bool:
        nonlocal told
        past = time.monotonic() - began
        if past - told > 1.0 and sys.__stderr__ is not None and sys.__stderr__.isatty():
            told = past
            with capsys.disabled():
                print(f"\r\x1b[K{past:5.0f} of {SECONDS:.0f} s: {tally}"[:200], end="", file=sys.stderr, flush=True)
        return past < SECONDS

    fuzz(tally, recorded_streams(), going_on, SEED)
    with capsys.disabled():
        print(f"\nfuzz, seed {SEED}: {report(tally)}")
    assert not tally.findings
    assert set(tally.streams) == set(APIS)


def test_a_fault_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(items: list[Item]) -> None:
        assert not any("boom" in str(item) for item in items)

    monkeypatch.setattr(sys.modules[__name__], "check", broken)
    right = framed(make("openai.chat", Random(3)).events, Random(3))
    stream = b'data: {"choices": [{"delta": {"content": "boom"}}]}\n\n' + right
    found = fault_of(Subject("openai.chat", stream), "1")
    assert found is not None
    small = shrink(Subject("openai.chat", stream), "1", found[0])
    assert b"boom" in small.stream
    assert len(small.stream) < 60
