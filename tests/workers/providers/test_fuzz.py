"""Ten minutes of damaged streams against adapters, decoders and the merge: nothing raises, every split is the same.

Streams are the recorded ones (without them, a few of our own), cut up, spliced with one another, read by the adapter of
another API as well. A failure is shrunk by hypothesis and printed with the bytes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.workers.providers import recordings
from tests.workers.providers.test_openai_chat import PROTOTYPE
from tests.workers.providers.test_properties import APIS, check, read

_SECONDS = 600.0
_ROUND = 150
_OWN = {"own": ("openai.chat", b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in PROTOTYPE))}
_WORDS = [
    *(
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\n",
        b"\r\n",
        b"\n\n",
        b"data: ",
        b"event: ",
        b"null",
        b"true",
    ),
    *(b"-1", b"1e999", b"NaN", b'""', b"{}", b"[]", b"\\ud83d", b"\xff", b"\xef\xbb\xbf", b"[DONE]", b"\x00"),
    *(b'"index":0', b'"index":1', b'"id":"a"', b'"type":"error"', b'"error":{"message":"x"}', b'"done":true'),
]


def corpus() -> dict[str, tuple[str, bytes]]:
    return {name: (api, recordings.load(name).stream) for name, api in recordings.apis().items()} or _OWN


def _edit(stream: bytes, other: bytes, edits: list[tuple[int, int, int, bytes]]) -> bytes:
    """Each edit: what to do, where, how long, with which word. Places are taken modulo what there is."""
    for kind, place, length, word in edits:
        at = place % (len(stream) + 1)
        end = min(at + length, len(stream))
        match kind:
            case 0:
                stream = stream[:at] + word + stream[at:]
            case 1:
                stream = stream[:at] + stream[end:]
            case 2:
                stream = stream[:end] + stream[at:end] + stream[end:]
            case 3:
                stream = stream[:at] + other[place % (len(other) + 1) :][:length] + stream[at:]
            case _:
                stream = stream[:at] + word + stream[end:]
    return stream


def _damaged(streams: dict[str, tuple[str, bytes]]) -> st.SearchStrategy[tuple[str, bytes, list[int]]]:
    names = st.sampled_from(sorted(streams))
    edit = st.tuples(st.integers(0, 4), st.integers(0, 30_000), st.integers(0, 400), st.sampled_from(_WORDS))

    def build(
        name: str, other: str, edits: list[Any], api: str | None, cuts: list[int]
    ) -> tuple[str, bytes, list[int]]:
        own, stream = streams[name]
        return api or own, _edit(stream, streams[other][1], edits), cuts

    apis = st.one_of(st.none(), st.none(), st.none(), st.sampled_from(APIS))
    cuts = st.lists(st.integers(0, 30_000), max_size=8)
    return st.builds(build, names, names, st.lists(edit, min_size=1, max_size=6), apis, cuts)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_minutes_of_damaged_streams(capsys: pytest.CaptureFixture[str]) -> None:
    streams = corpus()
    counts: Counter[str] = Counter()
    loose = settings(
        max_examples=_ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )

    @loose
    @given(_damaged(streams))
    def holds(damaged: tuple[str, bytes, list[int]]) -> None:
        api, stream, cuts = damaged
        items = read(api, [stream])
        check(items)
        places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
        assert read(api, [stream[a:b] for a, b in pairwise(places)]) == items
        counts[api] += 1

    end = time.monotonic() + _SECONDS
    number = 0
    while time.monotonic() < end:
        seed(number)(holds)()
        number += 1
    with capsys.disabled():
        print(f"\n{counts.total()} damaged streams: " + ", ".join(f"{api} {n}" for api, n in sorted(counts.items())))
    assert set(counts) == set(APIS)
