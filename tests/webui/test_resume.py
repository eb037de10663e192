"""The resume decision: what the recorded vectors leave open, and what must hold for every request and log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.webui.resume import Action, Asked, Log, Position, Resume, Route, Source, resolve, run_in

RUN = "run_1"
IDS = {"event:1": 2, "event:2": 3, "event:9": 5}
"""Of a run that was relayed: its first item is the worker's own, so the service counts otherwise than we do."""


def own(first: int = 1, last: int = 6, *, ended: bool = True) -> Log:
    return Log(RUN, first, last, ended)


def relayed(first: int = 1, last: int = 6, *, ended: bool = True) -> Log:
    return Log(RUN, first, last, ended, IDS)


def position(log: Log, **asked: str) -> tuple[int | None, Source]:
    found = resolve(Asked(**asked), log).position
    return found.seq, found.source


@pytest.mark.parametrize(
    ("asked", "seq", "source"),
    [
        ({"after_event_id": f"{RUN}:2", "after_seq": "4", "header": f"{RUN}:5"}, 2, Source.AFTER_EVENT_ID),
        ({"after_event_id": "  ", "after_seq": "4", "header": f"{RUN}:5"}, 4, Source.AFTER_SEQ),
        ({"after_event_id": "7", "after_seq": "4"}, 4, Source.AFTER_SEQ),
        ({"after_event_id": "7", "after_seq": "x"}, None, Source.AFTER_EVENT_ID),
        ({"after_event_id": f"{RUN}:x", "after_seq": "4"}, None, Source.AFTER_EVENT_ID),
        ({"after_event_id": ":3", "after_seq": "4"}, 4, Source.AFTER_SEQ),
        ({"after_event_id": ":4"}, None, Source.AFTER_EVENT_ID),
        ({"after_event_id": ":4", "after_seq": "x"}, None, Source.AFTER_EVENT_ID),
        ({"after_event_id": "::4", "after_seq": "4"}, None, Source.AFTER_EVENT_ID),
        ({"after_seq": "+3"}, 3, Source.AFTER_SEQ),
        ({"after_seq": "1_0"}, 0, Source.AFTER_SEQ),
        ({"after_seq": "\u0663"}, 0, Source.AFTER_SEQ),  # a digit, in another script
        ({"after_seq": "-0"}, 0, Source.AFTER_SEQ),
        ({"replay": "0", "header": f"{RUN}:5"}, None, Source.REPLAY),
        ({"cursor": f"{RUN}:5"}, None, Source.NOTHING),
        ({"cursor": "x", "header": f"{RUN}: 5"}, 5, Source.HEADER),
        ({"header": "\t"}, None, Source.NOTHING),
    ],
)
def test_which_part_counts(asked: dict[str, str], seq: int | None, source: Source):
    assert position(own(), **asked) == (seq, source)


@pytest.mark.parametrize("digits", ["9" * 10_000, "0" * 10_000 + "4", "-" + "9" * 10_000])
def test_digits_by_the_thousand_are_an_integer_and_no_work(digits: str):
    seq, source = position(own(), after_seq=digits)
    assert source is Source.AFTER_SEQ
    assert seq == (4 if digits[-1] == "4" else 0 if digits[0] == "-" else 10**40)


@pytest.mark.parametrize(
    ("asked", "seq", "source"),
    [
        # A seq of ours that is readable wins over whatever id came with it.
        ({"after_event_id": "event:2", "after_seq": "4"}, 4, Source.AFTER_SEQ),
        ({"after_event_id": f"{RUN}:2", "after_seq": "4"}, 4, Source.AFTER_SEQ),
        ({"after_event_id": "garbage", "after_seq": "4"}, 4, Source.AFTER_SEQ),
        ({"after_event_id": "other:3", "after_seq": "3"}, 3, Source.AFTER_SEQ),
        ({"after_seq": "4", "header": "event:1"}, 4, Source.AFTER_SEQ),
        # A browser takes the number from the id: that one counts the service's events.
        ({"after_event_id": "event:2", "after_seq": "2"}, 3, Source.AFTER_EVENT_ID),
        ({"after_event_id": "event:9", "after_seq": "9"}, 5, Source.AFTER_EVENT_ID),
        # An id alone.
        ({"after_event_id": "event:2"}, 3, Source.AFTER_EVENT_ID),
        ({"header": "event:2"}, 3, Source.HEADER),
        ({"cursor": "event:2"}, 3, Source.CURSOR),
        ({"header": f"{RUN}:4"}, 4, Source.HEADER),
        ({"cursor": "event:2", "header": "event:9"}, 5, Source.HEADER),
        # One that is no good blocks the header all the same.
        ({"after_event_id": "garbage", "header": "event:2"}, None, Source.AFTER_EVENT_ID),
        ({"after_event_id": "event:7", "after_seq": "x", "header": "event:2"}, None, Source.AFTER_EVENT_ID),
        ({"replay": "1", "header": "event:2"}, None, Source.REPLAY),
        ({"header": "event:7", "cursor": "event:2"}, None, Source.HEADER),
    ],
)
def test_which_part_counts_for_a_relayed_run(asked: dict[str, str], seq: int | None, source: Source):
    assert position(relayed(), **asked) == (seq, source)


def test_presence_is_not_validity():
    asked = resolve(Asked(after_event_id="other:2"), own())
    assert asked == Resume(Action.FOLLOW, 0, Position(True, None, Source.AFTER_EVENT_ID))
    assert resolve(Asked(), own()) == Resume(Action.FOLLOW, 0, Position(False, None, Source.NOTHING))


@pytest.mark.parametrize(
    ("log", "after", "action", "begins"),
    [
        (own(), 6, Action.FOLLOW, 5),  # the fence once more
        (own(), 5, Action.FOLLOW, 5),
        (own(), 7, Action.FOLLOW, 0),
        (own(ended=False), 6, Action.FOLLOW, 6),
        (own(ended=False), 7, Action.FOLLOW, 0),
        (own(first=6), 6, Action.FOLLOW, 5),
        (own(first=6), 4, Action.RECOVER, 4),
        (own(first=7), 6, Action.RECOVER, 5),  # expired: the fence is gone as well
        (own(first=7, ended=False), 6, Action.FOLLOW, 6),
        (own(first=1, last=0, ended=False), 0, Action.FOLLOW, 0),
        (own(first=1, last=0, ended=False), 3, Action.FOLLOW, 0),
    ],
)
def test_what_follows(log: Log, after: int, action: Action, begins: int):
    found = resolve(Asked(after_seq=str(after)), log)
    assert (found.action, found.after) == (action, begins)


@pytest.mark.parametrize(
    ("asked", "log", "action", "after"),
    [
        ({}, None, Action.LIVE, 0),
        ({"after_seq": "3", "replay": "1"}, own(), Action.LIVE, 0),
        ({"header": f"{RUN}:3"}, own(), Action.FOLLOW, 3),
        ({"after_event_id": f"{RUN}:3"}, own(), Action.FOLLOW, 3),
        ({"header": f"{RUN}:2", "after_event_id": f"{RUN}:3"}, own(), Action.FOLLOW, 2),
        ({"header": "garbage", "after_event_id": f"{RUN}:3"}, None, Action.SNAPSHOT, 0),
        ({"header": f"{RUN}:6"}, own(), Action.FOLLOW, 6),  # it has that run: what follows are later ones
        ({"header": f"{RUN}:7"}, own(), Action.SNAPSHOT, 0),
        ({"header": f"{RUN}:0"}, own(), Action.SNAPSHOT, 0),
        ({"header": f"{RUN}:-2"}, own(), Action.SNAPSHOT, 0),
        ({"header": f"{RUN}:x"}, own(), Action.SNAPSHOT, 0),
        ({"header": "unknown:3"}, None, Action.SNAPSHOT, 0),
        ({"header": f"{RUN}:3"}, own(first=5), Action.SNAPSHOT, 0),
        ({"header": f"{RUN}:4"}, own(first=5), Action.FOLLOW, 4),
        ({"header": "event:2"}, relayed(), Action.FOLLOW, 3),
    ],
)
def test_on_a_sessions_events(asked: dict[str, str], log: Log | None, action: Action, after: int):
    found = resolve(Asked(**asked), log, Route.SESSION)
    assert (found.action, found.after) == (action, after)


@pytest.mark.parametrize(
    ("asked", "run"),
    [
        ({}, None),
        ({"header": "a:1", "after_event_id": "b:1"}, "a"),
        ({"after_event_id": "b:1:2"}, "b:1"),
        ({"header": "garbage"}, None),
        ({"header": ":3"}, None),
    ],
)
def test_the_run_that_a_cursor_names(asked: dict[str, str], run: str | None):
    assert run_in(Asked(**asked)) == run


PARTS = st.one_of(
    st.just(""),
    st.integers(-3, 12).map(str),
    st.integers(-3, 12).map(lambda n: f"{RUN}:{n}"),
    st.integers(-3, 12).map(lambda n: f"event:{n}"),
    st.sampled_from(["other:2", "garbage", f"{RUN}:x", " ", "a:b:3", "1e3", "0"]),
)
REQUESTS: Any = st.fixed_dictionaries(
    dict.fromkeys(("after_event_id", "after_seq", "replay", "cursor", "header"), PARTS)
).map(lambda parts: Asked(**parts))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    last = draw(st.integers(0, 8))
    ended = draw(st.booleans()) and last > 0
    ids = draw(
        st.one_of(st.none(), st.dictionaries(st.integers(1, 12).map(lambda n: f"event:{n}"), st.integers(1, last or 1)))
    )
    return Log(RUN, draw(st.integers(1, last + 1)), last, ended, ids if last else None)


@given(REQUESTS, logs())
def test_no_request_withholds_the_fence_or_begins_in_a_hole(asked: Asked, log: Log):
    found = resolve(asked, log)
    assert 0 <= found.after <= log.last
    if found.action is Action.FOLLOW:
        assert found.after + 1 >= log.first
        assert not (log.ended and found.after == log.last)  # else nothing would ever come
    else:
        assert found.action is Action.RECOVER
        assert found.after + 1 < log.first
    if found.position.seq is None or found.position.seq > log.last:
        assert found.after == 0 or (log.ended and log.last == 0)


@given(REQUESTS, logs())
def test_an_explicit_part_keeps_the_header_out(asked: Asked, log: Log):
    if asked.after_event_id or asked.after_seq or asked.replay:
        parts = {name: getattr(asked, name) for name in ("after_event_id", "after_seq", "replay", "cursor")}
        assert resolve(asked, log) == resolve(Asked(**parts), log)


@given(REQUESTS, logs())
def test_a_sessions_viewer_goes_on_where_nothing_is_missing_or_gets_a_snapshot(asked: Asked, log: Log):
    found = resolve(asked, log, Route.SESSION)
    if found.action is Action.FOLLOW:
        assert log.first <= found.after + 1 <= log.last + 1
        assert found.after > 0
    else:
        assert found.action is (Action.SNAPSHOT if asked.header or asked.after_event_id else Action.LIVE)
