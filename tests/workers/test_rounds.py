"""One truth: the message that a run says it has is the one that its items merge to, or the run says that it is not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from broker.items import Event, Final, Item, Message, MessageDelta, Raw, ToolCallDelta
from broker.merge import Merger
from tests.broker.streams import RUNS
from workers.rounds import Rounds


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], **fields}


class Publishing:
    """Publishes as the worker does, and keeps what it published."""

    def __init__(self, *items: Item | Raw) -> None:
        self.rounds = Rounds()
        self.published: list[Item | Raw] = []
        self.emit(*items)

    def emit(self, *items: Item | Raw) -> Publishing:
        for item in items:
            for told in [*self.rounds.mismatch(item), item]:
                self.rounds.add(told)
                self.published.append(told)
        return self

    def end(self, **fields: Any) -> list[Item | Raw]:
        """What comes between the last item and the fence."""
        before = len(self.published)
        for item in self.rounds.ending(Final(**fields)):
            self.rounds.add(item)
            self.published.append(item)
        return self.published[before:]

    @property
    def mismatches(self) -> list[dict[str, Any]]:
        return [i.payload for i in self.published if isinstance(i, Event) and i.name == "merge.mismatch"]


def test_a_round_is_closed_with_its_message_once() -> None:
    run = Publishing(MessageDelta(text="a"))
    assert run.rounds.closing() == [Message(message=message("a"))]
    run.emit(*run.rounds.closing())
    assert run.rounds.closing() == run.end() == []
    assert run.mismatches == []


def test_each_choice_gets_its_message() -> None:
    run = Publishing(MessageDelta(text="a"), MessageDelta(text="b", choice=1))
    assert run.end() == [Message(message=message("a")), Message(choice=1, message=message("b"))]


def test_a_run_without_content_has_no_message() -> None:
    assert Publishing().end() == Publishing(Event(name="x")).end() == []


def test_a_message_that_is_the_merge_is_no_mismatch() -> None:
    run = Publishing(MessageDelta(text="a"), MessageDelta(text="b", index=1), Message(message=message("ab", model="m")))
    assert run.mismatches == []
    assert Publishing(Message(message=message("a"))).mismatches == [], "nothing was merged before"


def test_a_message_that_is_not_the_merge_is_said_before_it() -> None:
    run = Publishing(MessageDelta(text="a"), Message(message=message("b")))
    assert [type(item) for item in run.published] == [MessageDelta, Event, Message]
    assert run.mismatches == [{"round": 1, "differs": ["text"]}]
    run = Publishing(
        MessageDelta(text="a", choice=1, round=2), Raw("message", {"round": 2, "choice": 1, "message": {}})
    )
    assert run.mismatches == [{"round": 2, "choice": 1, "differs": ["text"]}]


def test_who_says_it_himself_is_not_told_again() -> None:
    own = Event(name="merge.mismatch", payload={"round": 1, "why": "I know"})
    assert Publishing(MessageDelta(text="a"), own, Message(message=message("b"))).mismatches == [own.payload]


def test_a_message_that_cannot_be_read_is_left_alone() -> None:
    assert Publishing(MessageDelta(text="a"), Raw("message", {"message": 5})).mismatches == []


def test_the_runners_last_word_counts_and_a_difference_is_said() -> None:
    run = Publishing(MessageDelta(text="a"))
    assert run.end(message=message("b")) == [
        Event(name="merge.mismatch", payload={"round": 1, "differs": ["text"]}),
        Message(message=message("b")),
    ]
    run = Publishing(MessageDelta(text="a"))
    assert run.end(message=message("a", model="m")) == [Message(message=message("a", model="m"))]
    run = Publishing(MessageDelta(text="a"), Message(message=message("a")))
    assert run.end(message=message("a")) == []


def test_the_last_word_of_a_runner_that_emitted_nothing() -> None:
    assert Publishing().end(message=message("b"), rounds=3) == [Message(round=3, message=message("b"))]


def test_deltas_behind_their_rounds_message_are_a_mismatch() -> None:
    run = Publishing(MessageDelta(text="a"), Message(message=message("a")), MessageDelta(text="b"))
    mismatch, last = run.end()
    assert mismatch == Event(name="merge.mismatch", payload={"round": 1, "differs": ["text"]})
    assert isinstance(last, Message)
    assert [b["text"] for b in last.message["content"]] == ["a", "b"]


def test_a_restart_forgets_the_messages_too() -> None:
    restarted = Event(name="run.restarted", payload={"attempt": 2})
    run = Publishing(MessageDelta(text="a"), Message(message=message("a")), restarted, MessageDelta(text="b"))
    assert run.end() == [Message(message=message("b"))]
    assert run.mismatches == []


@given(RUNS, st.none() | st.builds(message, st.text(max_size=3)), st.booleans())
def test_the_last_message_item_is_always_the_fences(run: list[Item], last: dict[str, Any] | None, early: bool) -> None:
    fences = ("final", "failed", "cancelled")
    publishing = Publishing(*(i for i in run if str(type(i).__struct_config__.tag) not in fences))
    if early:
        publishing.emit(*publishing.rounds.closing())
    outcome = {} if last is None else {"message": last}
    publishing.end(**outcome)
    merger = Merger()
    for item in publishing.published:
        merger.add(item)
    final = last or merger.message()
    last_round = [i for i in publishing.published if isinstance(i, Message) and i.round == merger.rounds]
    told = [i for i in last_round if i.choice in (UNSET, 0)]
    if final is not None:
        assert told[-1].message == final
        assert merger.message() == final


def test_calls_count_as_well() -> None:
    whole = {"content": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}]}
    assert Publishing(ToolCallDelta(call_id="c", name="f"), Message(message=whole)).mismatches == []
    assert Publishing(ToolCallDelta(call_id="d", name="f"), Message(message=whole)).mismatches == [
        {"round": 1, "differs": ["tool_call"]}
    ]
