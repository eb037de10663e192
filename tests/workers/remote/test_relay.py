"""A run of a runner service becomes a run of ours: over real HTTP, on a real store."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.api import StreamEntry
from broker.items import decode
from tests.runner_service import ServiceRun
from tests.servers import eventually
from tests.workers.remote.stage import KEY, Stage, staged


def types(entries: list[StreamEntry]) -> list[str]:
    return [entry.type for entry in entries]


def text(entries: list[StreamEntry]) -> str:
    return "".join(entry.fields["text"] for entry in entries if entry.type == "message.delta")


def ids(entries: list[StreamEntry]) -> list[Any]:
    return [entry.fields.get("source_id", "ours") for entry in entries]


async def test_each_event_is_an_item_under_its_own_seq_and_id(stage: Stage) -> None:
    def play(run: ServiceRun) -> None:
        run.say("reasoning", text="hm")
        run.tokens("one ", "two")
        run.say("tool", name="terminal", preview="ls", args={"command": "ls"}, tid="t1")
        run.say("tool_complete", name="terminal", preview="a b", tid="t1", is_error=False, duration=0.25)
        run.say("metering", usage={"input_tokens": 7, "output_tokens": 3})
        run.say("title", session_id="s", title="Greetings")
        run.tokens(" three")
        run.end()

    entries = await stage.run(play=play)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert types(entries) == [
        "reasoning.delta",
        "message.delta",
        "message.delta",
        "tool.started",
        "tool.completed",
        "usage",
        "event",
        "message.delta",
        "event",
        "message",
        "final",
    ]
    # As long as every item is the service's, its numbers are ours.
    assert ids(entries) == [*(f"event:{n}" for n in range(1, 10)), None, "event:10"]
    assert entries[4].fields["duration_ms"] == 250.0
    final = entries[-1].fields
    assert [block["text"] for block in final["message"]["content"] if block["type"] == "text"] == ["one two", " three"]
    assert final["usage"]["input_tokens"] == 7
    assert final["hermes_session_id"] == stage.service.runs[0].body["session_id"]


async def test_the_ids_lead_to_the_seqs(stage: Stage) -> None:
    stage.service.play = lambda run: run.whole("a", "b")
    run_id = await stage.create()
    entries = await stage.follow(run_id)
    log = stage.broker.log
    for entry in entries:
        if (id_ := entry.fields["source_id"]) is not None:
            assert await log.seq_of(run_id, id_) == entry.seq
    assert await log.seq_of(run_id, "event:99") is None
    assert await log.seq_of(run_id, f"{run_id}:1") is None
    assert (await log.state(run_id)).relayed
    assert await log.source_ids(run_id) == ["event:1", "event:2", "event:3", "event:4"]


async def test_the_request_is_carried_over(stage: Stage) -> None:
    run_id = await stage.create(
        "say it",
        model="m",
        provider="p",
        toolsets=["web"],
        approvals="ask",
        session_id="s1",
        metadata={"workspace": "w", "team": "blue"},
    )
    run = await stage.started()
    run.end()
    await stage.follow(run_id)
    asked = stage.service.calls("/v1/runs")
    assert len(asked) == 1
    assert asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert asked[0].headers["idempotency-key"] == run_id
    assert asked[0].body == {
        "session_id": "s1",
        "message": "say it",
        "attachments": [],
        "workspace": "w",
        "profile": None,
        "provider": "p",
        "model": "m",
        "toolsets": ["web"],
        "source": "runcast",
        "metadata": {"team": "blue", "runcast_run_id": run_id, "approvals": "ask"},
    }


async def test_cursors_reach_the_service_as_it_gave_them(stage: Stage) -> None:
    stage.service.started_at = "c0 /?&=ö"
    stage.service.page = 2
    stage.service.play = lambda run: run.tokens("a", "b", "c")
    run_id = await stage.create()
    await stage.has(run_id, 3)
    stage.service.runs[0].end()
    entries = await stage.follow(run_id)
    assert text(entries) == "abc"
    cursors = list(dict.fromkeys(stage.service.cursors()))
    assert cursors == ["c0 /?&=ö", "c2", "c3", "c5"][: len(cursors)]
    assert len(cursors) >= 3


async def test_a_service_that_sends_events_again_is_not_believed_twice(stage: Stage) -> None:
    stage.service.again, stage.service.page = 3, 2
    run_id = await stage.create()
    run = await stage.started()
    for word in "abcdef":
        run.tokens(word)
        await asyncio.sleep(0.03)
    run.end()
    assert text(await stage.follow(run_id)) == "abcdef"


async def test_events_without_ids_get_them_from_their_seq_or_place(stage: Stage) -> None:
    stage.service.page = 2
    stage.service.shape = lambda n, name, payload: {"seq": n, "type": name, "data": dict(payload)}
    entries = await stage.run(play=lambda run: run.whole("a", "b", "c"))
    assert ids(entries) == [*(f"srv/1:{n}" for n in (1, 2, 3, 4)), None, "srv/1:5"]
    stage.service.shape = lambda n, name, payload: {"type": name, **payload}
    entries = await stage.run(play=lambda run: run.whole("a", "b", "c"))
    assert ids(entries) == [*(f"srv/2:{n}" for n in (1, 2, 3, 4)), None, "srv/2:5"]
    assert text(entries) == "abc"


async def test_a_long_event_has_its_id_where_its_text_ends(url: str, tmp_path: Any) -> None:
    async with staged(url, tmp_path, item_max_bytes=1_024) as stage:
        entries = await stage.run(play=lambda run: run.whole("x" * 3_000))
        assert text(entries) == "x" * 3_000
        parts = [entry for entry in entries if entry.type == "message.delta"]
        assert [entry.fields.get("source_id") for entry in parts] == [None] * (len(parts) - 1) + ["event:1"]
        assert len(parts) > 2


async def test_a_failure_and_a_cancel_at_the_service(stage: Stage) -> None:
    def fail(run: ServiceRun) -> None:
        run.tokens("so far")
        run.say("apperror", type="rate_limit", message="too much")

    entries = await stage.run(play=fail)
    assert (entries[-1].type, entries[-1].fields["code"]) == ("failed", "rate_limit")
    assert entries[-1].fields["partial"]["content"][0]["text"] == "so far"
    assert entries[-1].fields["source_id"] == "event:2"
    entries = await stage.run(play=lambda run: run.say("cancel", message="stop it"))
    assert (entries[-1].type, entries[-1].fields["message"]) == ("cancelled", "stop it")


async def test_a_cancel_here_is_carried_there(stage: Stage) -> None:
    run_id = await stage.create()
    run = await stage.started()
    run.tokens("half")
    await stage.has(run_id, 1)
    await stage.broker.runs.cancel(run_id)
    entries = await stage.follow(run_id)
    assert run.cancels == 1
    assert entries[-1].type == "cancelled"
    assert entries[-1].fields["partial"]["content"][0]["text"] == "half"


async def test_the_end_may_be_told_by_the_status_alone(stage: Stage) -> None:
    for status, fence in (("completed", "final"), ("failed", "failed"), ("canceled", "cancelled")):

        def play(run: ServiceRun, status: str = status) -> None:
            run.tokens("all")
            run.status = status

        assert types(await stage.run(play=play))[-1] == fence


async def test_done_is_enough_where_nothing_follows(stage: Stage) -> None:
    def play(run: ServiceRun) -> None:
        run.say("done", session={"messages": [{"role": "assistant", "content": "whole"}]}, usage={"input_tokens": 4})

    entries = await stage.run(play=play)
    assert entries[-1].type == "final"
    assert entries[-1].fields["message"]["content"] == [{"type": "text", "text": "whole"}]
    assert entries[-1].fields["usage"]["input_tokens"] == 4
    assert "messages" not in str(entries[0].fields)


async def test_an_approval_and_its_answer(stage: Stage) -> None:
    run_id = await stage.create()
    run = await stage.started()
    run.say("approval", approval_id="a/1", command="rm -rf /", description="dangerous", pending_count=1)
    run.tokens("next")
    (ask,) = await stage.asked(run_id)
    assert (ask.kind, ask.payload["command"]) == ("approval", "rm -rf /")
    assert "approval_id" not in ask.payload
    await stage.has(run_id, 2)
    await stage.broker.runs.answer(run_id, ask.request_id, "session")
    await eventually(lambda: run.answers)
    run.end()
    entries = await stage.follow(run_id)
    assert run.answers == [("a/1", "session")]
    names = [entry.fields.get("name", entry.type) for entry in entries]
    assert names[:3] == ["approval.requested", "message.delta", "input.answered"]
    assert ids(entries)[:3] == ["event:1", "event:2", None]


async def test_a_question_and_its_answer(stage: Stage) -> None:
    run_id = await stage.create()
    run = await stage.started()
    run.say("clarify", clarify_id="q 1", question="which?", choices_offered=["red", "blue"], session_id="s")
    (ask,) = await stage.asked(run_id)
    assert (ask.kind, ask.payload["question"], ask.choices, ask.free) == ("question", "which?", ("red", "blue"), True)
    await stage.broker.runs.answer(run_id, ask.request_id, "green")
    await eventually(lambda: run.answers)
    run.end()
    await stage.follow(run_id)
    assert run.answers == [("q 1", "green")]


async def test_what_was_answered_at_the_service_is_asked_no_more(stage: Stage) -> None:
    run_id = await stage.create()
    run = await stage.started()
    run.say("approval", approval_id="a1", command="ls", description="d")
    await stage.asked(run_id)
    run.say("approval.resolved", approval_id="a1", choice="once")
    run.tokens("on")
    run.end()
    entries = await stage.follow(run_id)
    answered = [entry.fields for entry in entries if entry.fields.get("name") == "input.answered"]
    assert [fields["how"] for fields in answered] == ["stopped"]
    assert run.answers == []
    assert text(entries) == "on"


async def test_an_approval_that_nobody_gives_is_denied_there(url: str, tmp_path: Any) -> None:
    async with staged(url, tmp_path, input_timeout=0.3) as stage:
        run_id = await stage.create()
        run = await stage.started()
        run.say("approval", approval_id="a1", command="ls", description="d")
        await eventually(lambda: run.answers)
        assert run.answers == [("a1", "deny")]
        run.end()
        await stage.follow(run_id)


async def test_items_stay_readable(stage: Stage) -> None:
    """Whatever a payload has for the names of an item's envelope."""

    def play(run: ServiceRun) -> None:
        odd = {"ts": "now", "run_id": 1, "seq": [], "session_id": None, "type": "t", "name": "n", "component_id": 5}
        run.say("state_saved", **odd, parent_run_id=0, truncated_bytes="x", source_id=7, kept="yes")
        run.say("run.restarted", attempt=9)
        run.say("token", text="")
        run.say("error.odd\n", data=1)
        run.events.append(("goal", {}))
        run.end()

    entries = await stage.run(play=play)
    for entry in entries:
        decode(entry.type, entry.data)
    assert entries[0].fields["kept"] == "yes"
    assert entries[0].fields["source_id"] == "event:1"
    assert entries[1].fields["name"] == "service.run.restarted"
    assert entries[-1].type == "final"
