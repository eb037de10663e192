"""``runcast task``: made, watched and decided from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from broker.task_model import Step
from broker.task_view import step_view
from ops.findings import State
from ops.task_checks import of_hosts
from ops.task_lines import step_lines
from tests.ops.conftest import Command, Process
from workers.tasks.hosts import Host

PLAN = [
    {"title": "Look", "instruction": "Look around.", "risk": "low", "metadata": {"script": "tokens=2"}},
    {"title": "Change", "instruction": "Change it.", "risk": "high", "metadata": {"script": "tokens=1"}},
]


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"steps": PLAN}))
    return str(file)


def test_a_task_is_made_watched_and_approved(runcast: Command, worker: Process, plan: str) -> None:
    made = runcast("task", "new", "Tidy up.", "--plan", plan, "--runner", "scripted", "--detach", "--by", "ann")
    task_id = made.out.strip()
    command = [sys.executable, "-m", "ops.cli", "task", "watch", task_id, "--json"]
    watching = subprocess.Popen(command, env=runcast.environment, stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    for line in watching.stdout:
        if json.loads(line)["name"] == "task.step_waiting":
            break
    shown = runcast("task", "show", task_id)
    assert "waiting" in shown.out
    assert "Change it." in shown.out
    assert runcast("task", "approve", task_id, "3").code == 3
    assert runcast("task", "retry", task_id).code == 6
    assert runcast("task", "reject", task_id, "2").code == 2
    assert runcast("task", "approve", task_id).code == 2
    assert runcast("task", "edit", task_id, "2", "--title", "Change a bit", "--by", "bob").code == 0
    assert runcast("task", "approve", task_id, "2", "--revision", "1").code == 6
    assert runcast("task", "approve", task_id, "2", "--revision", "2", "--by", "bob").code == 0
    rest = [json.loads(line) for line in watching.stdout]
    assert watching.wait(20) == 0
    assert [event["name"] for event in rest][-1] == "task.completed"
    assert rest[-1]["task"]["steps_done"] == 2
    found = json.loads(runcast("task", "show", task_id, "--json").out)
    assert [step["result"] for step in found["steps"]] == ["w1 w2 ", "w1 "]
    assert (found["by"], found["steps"][1]["approved_by"]) == ("ann", "bob")
    assert runcast("task", "list").out.split()[:3] == [task_id, "completed", "2/2"]
    assert "\tStep 1 of 2 of a task: Look\n" in runcast("runs").out
    assert runcast("task", "watch", task_id).out.splitlines()[-1] == "completed completed"
    assert runcast("task", "cancel", task_id).code == 6


def test_what_is_decided_while_no_worker_is_there_is_shown(runcast: Command, plan: str) -> None:
    task_id = runcast("task", "new", "Tidy up.", "--plan", plan, "--runner", "scripted", "--detach").out.strip()
    assert runcast("task", "approve", task_id, "2", "--by", "ann", "--reason", "fine").code == 0
    shown = runcast("task", "show", task_id).out
    assert "decided, waits for a worker: step approved 2 by ann: fine" in shown
    assert "2. approved" in shown


def test_a_task_is_cancelled(runcast: Command, worker: Process, plan: str) -> None:
    task_id = runcast("task", "new", "Tidy up.", "--plan", plan, "--runner", "scripted", "--detach").out.strip()
    assert runcast("task", "cancel", task_id, "--reason", "enough").code == 0
    watched = runcast("task", "watch", task_id)
    assert watched.code == 5
    assert watched.out.splitlines()[-1].endswith(": enough")


def test_what_is_no_task(runcast: Command, tmp_path: Path) -> None:
    assert runcast("task", "show", "run_none").code == 3
    assert (runcast("task", "list").code, runcast("task", "list").out) == (0, "")
    (tmp_path / "plan.json").write_text('{"steps": [{"title": "x"}]}')
    refused = runcast("task", "new", "Goal.", "--plan", str(tmp_path / "plan.json"), "--detach")
    assert refused.code == 2
    assert "missing required field `instruction`" in refused.err
    assert runcast("task", "new", "Goal.", "--plan", str(tmp_path / "none.json"), "--detach").code == 2
    (tmp_path / "plan.json").write_text("[" * 100_000)
    refused = runcast("task", "new", "Goal.", "--plan", str(tmp_path / "plan.json"), "--detach")
    assert (refused.code, "is no plan" in refused.err, "Traceback" in refused.err) == (2, True, False)
    for option in ("--runner", "--planner"):
        refused = runcast("task", "new", "Goal.", option, "a/b", "--detach")
        assert (refused.code, f"at `$.{option[2:]}`" in refused.err) == (2, True)
    assert runcast("task", "list").out == ""


def test_an_answer_is_shown_without_the_blank_lines_around_it() -> None:
    step = Step(n=1, title="Look", instruction="Look.", risk="low", approval=False, state="completed")
    step = msgspec.structs.replace(step, result="\n\nOne.\n \n  Two.\n\n")
    assert step_lines(step_view(step))[1:] == ["       One.", "", "         Two."]


def host(name: str, identity: str) -> Host:
    return Host(name=name, identity=identity, path=f"/tasks/{identity}", at=1.0)


A, B, A2 = host("a", "1"), host("b", "1"), host("a", "2")


@pytest.mark.parametrize(
    ("hosts", "identity", "alive", "state", "says"),
    [
        ([], None, 0, State.OK, "no worker has said"),
        ([A], "1", 1, State.OK, "one host works on tasks: a"),
        ([A], "1", 0, State.OK, "one host worked on tasks within the last week, none at present: a"),
        ([A, B], "1", 2, State.OK, "2 hosts share it (a, b)"),
        ([A, host("b", "2")], "1", 2, State.WRONG, "a: /tasks/1; b: /tasks/2"),
        ([A, A2], "1", 2, State.WRONG, "several task paths"),
        ([A, A2], "1", 1, State.NOTE, "within the last week several task paths"),
        ([A], None, 1, State.NOTE, "/tasks, which is not the directory of the workers that there are (a: /tasks/1)"),
        ([A], None, 0, State.NOTE, "not the directory of workers that there were within the last week (a: /tasks/1)"),
        ([A, B], "3", 2, State.NOTE, "(a: /tasks/1; b: /tasks/1)"),
    ],
)
def test_doctor_says_whether_the_task_path_is_shared(
    hosts: list[Host], identity: str | None, alive: int, state: State, says: str
) -> None:
    found = of_hosts(hosts, "/tasks", identity, alive=alive)
    assert found.state is state
    assert says in found.found
    assert (len({h.name for h in hosts}) == 2 and state is State.OK) or "one shared RUNCAST_TASKS_DIR" in found.hint


def test_doctor_has_nothing_against_a_host_that_works_on_none() -> None:
    assert of_hosts([A], "", alive=1).state is State.OK


def test_doctor_names_the_task_path(runcast: Command, worker: Process) -> None:
    found = [json.loads(line) for line in runcast("doctor", "--json").out.splitlines()]
    [tasks] = [finding for finding in found if finding["subject"] == "tasks"]
    assert tasks["state"] == "ok"
    assert f"{runcast.settings.tasks_path}; one host works on tasks" in tasks["found"]
