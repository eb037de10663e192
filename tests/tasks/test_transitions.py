"""The table of transitions: every state against every decision, and what holds along any path."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import (
    InvalidRequest,
    RuncastError,
    StepChanged,
    StepConflict,
    TaskEnded,
    TaskFull,
    TaskNotHalted,
    UnknownStep,
)
from broker.task_model import (
    RISKS,
    Ask,
    Change,
    Options,
    PlannedStep,
    State,
    Step,
    Task,
    Trouble,
    current_step,
    halt_of,
    is_done,
    needs_approval,
    status_of,
)
from broker.task_plan import steps_of
from broker.task_transitions import DECISIONS, RULES, VERSIONS_MAX, apply, next_move
from broker.task_view import TaskFold, event_of, resumed_event, step_view, summary_of
from broker.tasks import bare

LUCKLESS = Trouble(code="no_luck", message="it did not work")
STATES: tuple[State, ...] = State.__args__


def step(n: int = 1, **fields: Any) -> Step:
    return Step(**{"n": n, "title": f"Step {n}", "instruction": "do it", "risk": "high", "approval": True, **fields})


def task(*steps: Step, **fields: Any) -> Task:
    given = {"task_id": "t", "goal": "g", "created_at": 1.0, "started": True, "steps": steps, **fields}
    return Task(**given)


def change(what: str, n: int | None = 1, **fields: Any) -> Change:
    return Change(what=what, at=2.0, step=n, **fields)


ALLOWED = {
    "step_approved": {"pending", "waiting"},
    "step_rejected": {"pending", "waiting", "approved", "failed"},
    "step_edited": {"pending", "waiting", "failed", "rejected"},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("what", ALLOWED)
def test_what_people_may_decide_in_which_state(what: str, state: State) -> None:
    before = task(step(state=state))
    said = change(what, reason="because", title="Another" if what == "step_edited" else None)
    if state in ALLOWED[what]:
        after = apply(before, said)
        assert after.version == 1
        assert after.history[-1].what == what
    else:
        with pytest.raises(StepConflict, match=f"step 1 is {state}"):
            apply(before, said)


@pytest.mark.parametrize("what", sorted(DECISIONS))
@pytest.mark.parametrize("ended", ["completed", "cancelled"])
def test_nothing_is_decided_about_a_task_that_has_ended(what: str, ended: Any) -> None:
    with pytest.raises(TaskEnded, match=ended):
        apply(task(step(), ended=ended), change(what, up_to="low", reason="x"))


@pytest.mark.parametrize("n", [0, -1, 2, None, 10_000])
def test_an_unknown_step(n: int | None) -> None:
    with pytest.raises(UnknownStep, match=r"no step .*: it has 1 step"):
        apply(task(step()), change("step_approved", n))
    with pytest.raises(UnknownStep, match="no plan yet"):
        apply(task(), change("step_approved", n))


def test_an_approval_of_what_was_edited_meanwhile_is_refused() -> None:
    edited = apply(task(step(state="waiting")), change("step_edited", instruction="do another thing", revision=1))
    assert edited.steps[0].revision == 2
    assert edited.history[-1].detail == {"changed": {"instruction": "do it"}}
    with pytest.raises(StepChanged, match="of revision 2"):
        apply(edited, change("step_approved", revision=1))
    assert apply(edited, change("step_approved", revision=2)).steps[0].state == "approved"


def test_an_edit_takes_the_approval_away() -> None:
    approved = apply(task(step()), change("step_approved", by="ann"))
    failed = apply(apply(approved, change("step_started", run_id="r")), change("step_failed", trouble=LUCKLESS))
    assert next_move(apply(failed, change("retried", None))).what == "step_started"  # what ann approved
    edited = apply(failed, change("step_edited", title="Another"))
    assert next_move(apply(edited, change("retried", None))).what == "step_waiting"


@pytest.mark.parametrize(
    ("said", "approval"),
    [({"risk": "critical"}, True), ({"risk": "low"}, False), ({"risk": "high", "approval": False}, False)],
)
def test_a_greater_risk_needs_an_approval_unless_a_person_says_no(said: dict[str, Any], approval: bool) -> None:
    edited = apply(task(step(risk="low", approval=False)), change("step_edited", **said))
    assert edited.steps[0].approval is approval


def test_an_edit_that_changes_nothing_is_none() -> None:
    with pytest.raises(InvalidRequest, match="at least one of"):
        apply(task(step()), change("step_edited"))


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_a_rejection_needs_a_reason(reason: str | None) -> None:
    with pytest.raises(InvalidRequest, match="needs a reason"):
        apply(task(step()), change("step_rejected", reason=reason))


@pytest.mark.parametrize("up_to", RISKS)
def test_approving_all_up_to_a_risk(up_to: Any) -> None:
    steps = [step(n, risk=risk) for n, risk in enumerate(RISKS, 1)]
    approved = apply(task(*steps, step(5, risk="low", approval=False)), change("approved", None, up_to=up_to))
    most = RISKS.index(up_to) + 1
    assert [s.state for s in approved.steps] == ["approved"] * most + ["pending"] * (5 - most)
    with pytest.raises(StepConflict, match="no step of a risk up to"):
        apply(approved, change("approved", None, up_to=up_to))


def test_a_step_that_needs_no_approval_is_not_approved() -> None:
    with pytest.raises(StepConflict, match="needs no approval"):
        apply(task(step(approval=False)), change("step_approved"))


def test_a_retry_of_a_task_that_is_not_halted_is_refused() -> None:
    with pytest.raises(TaskNotHalted):
        apply(task(step(state="running")), change("retried", None))


def test_a_task_that_has_had_too_many_changes_can_only_be_cancelled() -> None:
    full = task(step(), version=VERSIONS_MAX)
    with pytest.raises(TaskFull):
        apply(full, change("step_approved"))
    assert apply(full, change("cancelled", None)).ended == "cancelled"


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("stated", [True, False, None])
@pytest.mark.parametrize("trusted", [True, False])
def test_who_must_be_asked(risk: Any, stated: bool | None, trusted: bool) -> None:
    """A planner cannot talk a risk away, a person can."""
    planned = PlannedStep(title="t", instruction="i", risk=risk, approval=stated)
    risky = risk in ("high", "critical")
    expected = risky if stated is None else stated if trusted else stated or risky
    assert needs_approval(planned, "high", trusted=trusted) is expected


# Along any path.

_PLAN = st.lists(
    st.builds(
        PlannedStep,
        title=st.just("t"),
        instruction=st.just("i"),
        risk=st.sampled_from(RISKS),
        approval=st.sampled_from([True, False, None]),
    ),
    min_size=1,
    max_size=5,
)
_WORD = st.text("ab", max_size=2)
_CHANGES = st.builds(
    Change,
    what=st.sampled_from(sorted(RULES)),
    at=st.just(3.0),
    step=st.sampled_from([None, 1, 2, 3, 4, 5, 6]),
    by=_WORD,
    reason=st.none() | _WORD,
    revision=st.sampled_from([None, None, 1, 2]),
    title=st.none() | _WORD,
    instruction=st.none() | _WORD,
    risk=st.none() | st.sampled_from(RISKS),
    approval=st.sampled_from([None, True, False]),
    then=st.sampled_from(["halt", "continue"]),
    up_to=st.none() | st.sampled_from(RISKS),
    run_id=st.just("r"),
    trouble=st.just(LUCKLESS),
    result=st.none() | _WORD,
    ask=st.just(Ask(run_id="r", request_id="q", kind="question")),
    request_id=st.just("q"),
    plan=_PLAN.map(tuple),
)


@st.composite
def _worked_on(draw: st.DrawFn) -> list[tuple[Task, Change | None, Task]]:
    """A path: at each point either what the worker would do next, or anything at all."""
    options = Options(approval_from=draw(st.sampled_from(RISKS)))
    planned = draw(st.booleans())
    steps = () if planned else steps_of(draw(_PLAN), options.approval_from, trusted=True)
    now = Task(task_id="t", goal="g", created_at=1.0, steps=steps, options=options)
    path: list[tuple[Task, Change | None, Task]] = []
    for _ in range(draw(st.integers(1, 40))):
        said = draw(_CHANGES)
        move = next_move(now)
        if draw(st.booleans()) and move.what in RULES:
            said = msgspec.structs.replace(said, what=move.what, step=move.step, revision=None)
        try:
            after = apply(now, said)
        except RuncastError:
            continue
        path.append((now, said, after))
        now = after
    return path


@given(_worked_on())
def test_what_holds_along_any_path(path: list[tuple[Task, Change, Task]]) -> None:
    for before, said, after in path:
        assert after.version == before.version + 1 == len(after.history)
        assert after.history[:-1] == before.history
        assert before.ended is None
        for now, then in zip(after.steps, before.steps, strict=False):
            if now.state == "running" and then.state != "running":
                # Nothing that needs an approval runs without one, of the text as it stands.
                assert not now.approval or (now.approved_by is not None and then.state == "approved")
                assert all(is_done(s) for s in after.steps[: now.n - 1]) or said.what == "step_started"
            if then.state in ("completed", "cancelled"):
                assert now == then  # a result is never touched again
            if now.revision != then.revision:
                assert now.approved_by is None
        assert (status_of(after) == "halted") == (halt_of(after) is not None)


@given(_worked_on())
def test_the_worker_can_always_do_what_is_next(path: list[tuple[Task, Change, Task]]) -> None:
    for _, _, after in path:
        move = next_move(after)
        if move.what in RULES:
            apply(after, change(move.what, move.step, run_id="r"))
        else:
            assert move.what in ("wait", "follow", "end")
            assert (move.what == "end") == (after.ended is not None)
            if move.what == "wait":
                assert status_of(after) in ("waiting", "halted")


@given(_worked_on())
def test_the_stream_tells_the_task_from_any_snapshot_on(path: list[tuple[Task, Change, Task]]) -> None:
    fold, late = TaskFold(), TaskFold()
    for place, (_, _, after) in enumerate(path):
        event = event_of(after, after.history[-1], 1 << 20)
        fields = {"name": event.name, **msgspec.json.decode(msgspec.json.encode(event.payload))}
        fold.add(fields)
        fold.add(fields)  # told twice by a worker that died in between
        if place == len(path) // 2:
            resumed = resumed_event(after, 2, 1 << 20)
            late.add({"name": resumed.name, **resumed.payload})
        elif place > len(path) // 2:
            late.add(fields)
    if path:
        last = path[-1][2]
        seen = fold.view()
        assert seen is not None
        assert {**seen, "steps": 0, "history": 0} == {**summary_of(last), "steps": 0, "history": 0}
        assert [entry["version"] for entry in seen["history"]] == [entry.version for entry in last.history]
        assert late.view() is not None
        for told in (fold, late):
            known = [told.steps[n] for n in sorted(told.steps)]
            if "created" in {entry.what for entry in last.history} or told is late:
                assert known == msgspec.json.decode(msgspec.json.encode([step_view(s) for s in last.steps]))


@given(_worked_on())
def test_the_stored_form_decides_alike(path: list[tuple[Task, Change, Task]]) -> None:
    """A gateway has the task without its texts: it must allow what the worker allows, and nothing else."""
    decoder = msgspec.json.Decoder(Task)
    for before, said, after in path:
        stored = decoder.decode(msgspec.json.encode(bare(before)))
        assert bare(apply(stored, said)) == bare(after)


def test_the_current_step_is_the_first_that_is_not_done() -> None:
    steps = (step(1, state="completed"), step(2, state="rejected", passed=True), step(3), step(4))
    found = current_step(task(*steps))
    assert found is not None
    assert found.n == 3
