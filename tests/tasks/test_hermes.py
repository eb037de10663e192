"""A task by the real Hermes: planned, approved, rejected, edited, failed and retried, asked and answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from tests.e2e.hermes import hermes_binary, make_home, processes
from tests.fake_model import AFTER_TOOL, PLAIN, FakeModel
from tests.servers import RedisServer
from tests.tasks.conftest import Person, states
from tests.tasks.test_flow import told_alike
from tests.tasks.test_page import address, browser, client, page, shows
from tests.tasks.test_page import step as card
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings
from workers.tasks.runner import task_worker
from workers.worker import Worker

__all__ = ["address", "browser", "client", "page"]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc"),
    pytest.mark.timeout(240),
]
BUILDS = [
    pytest.param("RUNCAST_TEST_HERMES", id="0.22", marks=pytest.mark.long),
    pytest.param("RUNCAST_TEST_HERMES_019", id="0.19", marks=pytest.mark.long),
]
_STEPS = [
    {"title": "Greet", "instruction": "Say something PLAIN", "risk": "low", "approval": False},
    {"title": "Look", "instruction": "Look around with a TOOL", "risk": "high", "approval": False},
    {"title": "Ask", "instruction": "Find out what goes wrong: ERR401", "risk": "low", "approval": False},
    {"title": "Clean", "instruction": "Remove the place: DANGER {victim}", "risk": "critical", "approval": True},
]


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with FakeModel(pace=0.01) as serving:
        yield serving


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """What a dangerous command is to remove."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text("to be removed\n")
    return folder


@pytest.fixture
def home(model: FakeModel, tmp_path: Path) -> Path:
    """Of a Hermes that waits for people as long as they need."""
    folder = tmp_path / "home"
    folder.mkdir()
    make_home(folder, model)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("{timeout: 3}", "{timeout: 60}"))
    return folder


@pytest.fixture
async def broker(redis7: RedisServer, tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(redis_url=redis7.url, namespace=f"t{uuid4().hex[:12]}", data_dir=tmp_path, worker_drain=0.5)
    async with api.open(settings=settings) as opened:
        yield opened


@contextlib.asynccontextmanager
async def working(broker: Broker, binary: str, home: Path, trace: str) -> AsyncIterator[None]:
    environ = {**os.environ, "HERMES_HOME": str(home), "HOME": str(home), "RUN_TRACE": trace}
    runner = HermesRunner(HermesSettings(bin=binary), environ=environ)
    workers = [Worker(broker, runners={"hermes": runner}, sweep=False), task_worker(broker)]
    both = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.drain()
        await asyncio.wait_for(asyncio.gather(*both), 60)
    assert not processes(trace)


def is_there(path: Path) -> bool:
    return path.exists()


@pytest.mark.parametrize("variable", BUILDS)
async def test_a_planned_task(
    variable: str, page: Any, address: str, person: Person, broker: Broker, model: FakeModel, home: Path, victim: Path
) -> None:
    """Four steps, two approvals, a rejection, an edit, a failure that is retried; a question is answered in the page,
    and a dangerous command allowed."""
    plan = [{**step, "instruction": str(step["instruction"]).format(victim=victim)} for step in _STEPS]
    model.told["Make a plan"] = f"Here it is.\n\n```json\n{json.dumps({'steps': plan})}\n```"

    async def at(status: str, step: int) -> dict[str, Any]:
        return await person.until(lambda task: (task["status"], task["current_step"]) == (status, step), 60)

    async with working(broker, hermes_binary(variable), home, uuid4().hex):
        await person.makes(goal="Leave the place as it was.", runner="hermes", planner="hermes", by="ann")
        await page.goto(f"{address}/workspace/tasks/{person.task_id}")
        seen = await at("waiting", 2)
        assert [step["title"] for step in seen["steps"]] == [step["title"] for step in _STEPS]
        assert [step["approval"] for step in seen["steps"]] == [False, True, False, True]
        assert seen["steps"][0]["result"] == PLAIN
        await person.says("steps/2/approve", by="ann")
        seen = await at("halted", 3)
        assert seen["steps"][1]["result"].endswith(AFTER_TOOL)
        assert seen["halted"]["message"]
        await person.says("steps/3/edit", instruction="Ask which colour it was. ASK", by="bob", revision=1)
        await person.says("retry", by="bob")

        await person.until(lambda task: task["steps"][2]["asks"], 60)
        await shows(page, card(3, ".ask[data-state=open]"), "Which colour?")
        await page.press("#waits", "Enter")
        await page.click(card(3, ".ask-buttons >> text=blue"))
        await shows(page, card(3, ".ask-state"), "Answered: blue")

        await at("waiting", 4)
        await person.says("steps/4/reject", reason="not all of it", by="ann")
        await at("halted", 4)
        await person.says("retry", by="ann")
        await at("waiting", 4)
        await person.says("steps/4/approve", by="bob")
        seen = await person.until(lambda task: task["steps"][3]["asks"], 60)
        [ask] = seen["steps"][3]["asks"]
        assert (ask["kind"], str(victim) in ask["payload"]["command"]) == ("approval", True)
        assert is_there(victim)
        assert (await person.says("input", request_id=ask["request_id"], answer=True))["answer"] == "once"
        seen = await person.is_("completed", 60)
        assert not is_there(victim)
        await shows(page, "#status", "Completed")
        await shows(page, "#history", "Step 3 was answered: blue")
        await shows(page, card(1, ".step-result"), PLAIN.splitlines()[0])
    assert states(seen) == ["completed"] * 4
    assert [step["approved_by"] for step in seen["steps"]] == [None, "ann", None, "bob"]
    assert [step["tries"] for step in seen["steps"]] == [1, 1, 2, 1]
    assert all(step["usage"]["output_tokens"] for step in seen["steps"])
    decided = [(e["what"], e["step"], e["by"]) for e in seen["history"] if e["by"]]
    assert decided == [
        ("created", None, "ann"),
        ("step_approved", 2, "ann"),
        ("step_edited", 3, "bob"),
        ("retried", None, "bob"),
        ("step_rejected", 4, "ann"),
        ("retried", None, "ann"),
        ("step_approved", 4, "bob"),
    ]
    answers = [(e["step"], e["detail"]["answer"]) for e in seen["history"] if e["what"] == "input_answered"]
    assert answers == [(3, "blue"), (4, "once")]
    await told_alike(person)


@pytest.mark.parametrize("variable", BUILDS)
async def test_a_step_that_is_denied_a_command_does_without_it(
    variable: str, person: Person, broker: Broker, home: Path, victim: Path
) -> None:
    step = {"title": "Clean", "instruction": f"Remove the place: DANGER {victim}", "risk": "low"}
    async with working(broker, hermes_binary(variable), home, uuid4().hex):
        await person.makes(runner="hermes", steps=[step])
        seen = await person.until(lambda task: task["steps"][0]["asks"], 60)
        [ask] = seen["steps"][0]["asks"]
        assert "deny" in ask["choices"]
        await person.says("input", request_id=ask["request_id"], answer=False)
        await person.says("input", expect=409, request_id=ask["request_id"], answer=True)
        seen = await person.until(lambda task: task["status"] in ("completed", "halted"), 60)
    assert is_there(victim)
    [answered] = [e for e in seen["history"] if e["what"] == "input_answered"]
    assert answered["detail"]["answer"] == "deny"
    await told_alike(person)


async def test_a_step_is_a_run_of_hermes(person: Person, broker: Broker, home: Path) -> None:
    """The short one."""
    steps = [{"title": "Greet", "instruction": "Say something PLAIN", "approval": True}]
    async with working(broker, hermes_binary("RUNCAST_TEST_HERMES"), home, uuid4().hex):
        await person.makes(runner="hermes", steps=steps)
        await person.is_("waiting")
        await person.says("steps/1/approve", by="ann")
        seen = await person.is_("completed", 60)
    [step] = seen["steps"]
    assert step["result"] == PLAIN
    run = await broker.runs.get(step["run_id"])
    assert (run.runner, run.status, run.request["component"]) == ("hermes", "completed", "step:1")
    await told_alike(person)
