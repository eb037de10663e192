"""The page of tasks in a real browser: people who look on, decide, answer, and reload whenever they like."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from broker.api import Broker
from gateway.app import create_app
from tests.gateway.conftest import serving
from tests.gateway.test_page import browser, page, playwright, shows
from tests.tasks.conftest import PLAN, Person, RunnerFailed, Says, Working
from tests.tasks.page_sights import FAINT, READ, UNLABELLED

__all__ = ["browser", "page", "shows"]

expect = playwright.expect
SPEAKS = {"metadata": {"script": "tokens=5"}}
ASKS = {"metadata": {"script": "tokens=6 question=3"}}
"""Says three words, and goes on once its question is answered."""


@pytest.fixture
async def address(broker: Broker) -> AsyncIterator[str]:
    async with serving(create_app(broker=broker)) as served:
        yield served


@pytest.fixture
async def client(address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Other people decide at the same gateway."""
    async with httpx.AsyncClient(base_url=address, timeout=20) as opened:
        yield opened


def step(n: int, more: str = "") -> str:
    return f"#steps > li:nth-child({n}) {more}"


async def sees(page: Any) -> dict[str, Any]:
    """What a person reads on the page, times aside."""
    seen: dict[str, Any] = await page.evaluate(READ)
    return seen


async def reloads(page: Any, person: Person) -> None:
    """A reload loses nothing. To be called where nothing more happens before a person does something."""
    told = len((await person.sees())["history"])
    await expect(page.locator("#history .told")).to_have_count(told)
    before = await sees(page)
    await page.reload()
    for _ in range(100):
        if (after := await sees(page)) == before:
            return
        await page.wait_for_timeout(50)
    assert after == before


async def test_one_approves_and_everybody_sees_it(
    page: Any, browser: Any, address: str, person: Person, working: Working
) -> None:
    plan = [{**PLAN[0], **SPEAKS}, {**PLAN[1], **ASKS}, {**PLAN[2], **SPEAKS}]
    async with working():
        await person.makes(goal="Tidy up <img src=x>.", steps=plan, runner="scripted", by="ann")
        second = await browser.new_page()
        for screen in (page, second):
            await screen.goto(f"{address}/workspace/tasks/{person.task_id}")
            await shows(screen, "#task-title", "Tidy up <img src=x>.")
            await shows(screen, step(2, ".step-state"), "Waits for approval")
            await shows(screen, step(2, ".risk"), "High risk")
            await shows(screen, "#waits", "Step 2 waits for you")
        assert (await page.title()).startswith("? Tidy up")
        await page.fill("#who", "bob")
        await page.press("#waits", "Enter")
        await expect(page.locator(step(2, ".step-actions .primary >> nth=0"))).to_be_focused()
        await page.keyboard.press("Enter")
        for screen in (page, second):
            await shows(screen, step(2, ".step-decided"), "Approved by bob")
            await shows(screen, step(2, ".step-state"), "Running")
            await shows(screen, step(2, ".live-output"), "w1 w2 w3")  # what its own run says, as it comes
            await shows(screen, step(2, ".ask[data-state=open]"), "Which colour?")
            await shows(screen, "#history", "Step 2 asks")  # the last thing that happens before an answer
        await expect(page.locator(step(2, ".step-title"))).to_be_focused()  # the button is gone, the place is kept
        await reloads(second, person)
        await second.click(step(2, ".ask-buttons >> text=green"))
        for screen in (page, second):
            await shows(screen, "#connection", "complete")
            await shows(screen, "#status", "Completed")
            await shows(screen, step(2, ".ask-state"), "Answered: green")
            await shows(screen, step(2, ".step-result"), "[answer: green]")
            await shows(screen, "#facts", "3 of 3 steps done")
            await shows(screen, "#tasks", "Completed · 3 of 3")
        assert await page.locator("#cancel").is_hidden()
        assert await sees(page) == await sees(second)
        await reloads(page, person)
        told = [entry["what"] for entry in (await person.sees())["history"]]
        assert await page.locator("#history li").count() == len(told)
        await shows(page, "#history", "Step 2 was approved by bob")
        await page.click(step(1, ".live summary"))  # what a step did that is over
        await shows(page, step(1, ".live-output"), "w1 w2 w3 w4 w5")
    await page.goto(address)  # among the runs a task leads to its page, and the run of a step to its task
    steps = [f"Step {n} of 3 of a task: {PLAN[n - 1]['title']}" for n in (3, 2, 1)]
    await expect(page.locator("#runs .title")).to_have_text([*steps, "Tidy up <img src=x>."])
    await page.click("#runs >> text=Step 2 of 3 of a task: Change")
    await shows(page, "#task-title", "Tidy up <img src=x>.")
    await page.goto(f"{address}/#run={(await person.sees())['steps'][1]['run_id']}")
    await page.click("#task-link >> text=Step 2 of a task")
    await shows(page, "#task-title", "Tidy up <img src=x>.")
    await page.goto(f"{address}/#run={person.task_id}")
    await page.click("#task-link >> text=Open this task")
    await shows(page, "#task-title", "Tidy up <img src=x>.")


async def test_a_step_is_rejected_edited_and_retried(
    page: Any, address: str, person: Person, working: Working, says: Says
) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await page.goto(f"{address}/workspace/tasks/{person.task_id}")
        await page.fill("#who", "ann")
        await page.click(step(2, ".step-actions >> text=Reject…"))
        await expect(page.get_by_label("Why")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog")).to_have_count(0)
        await expect(page.locator(step(2, ".danger"))).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")  # no reason: nothing is sent
        assert await page.locator("dialog").is_visible()
        await page.keyboard.type("too <much>")
        await page.keyboard.press("Enter")
        await shows(page, "#halted-text", "Step 2: rejected: too <much>")
        await shows(page, step(2, ".step-decided"), "Rejected: too <much>")
        await expect(page.locator("dialog")).to_have_count(0)
        await expect(page.locator(step(2, ".step-title"))).to_be_focused()
        await reloads(page, person)

        await page.click(step(2, ".step-actions >> text=Edit…"))
        await page.fill("dialog textarea", "Change half of it.")
        await person.says("steps/2/edit", title="Change it", by="bob")  # somebody is quicker
        await page.press("dialog textarea", "Control+Enter")
        await shows(page, "dialog .problem", "step_changed")
        await page.keyboard.press("Escape")
        await shows(page, step(2, ".step-title"), "Change it")
        await page.click(step(2, ".step-actions >> text=Edit…"))
        await page.fill("dialog textarea", "Change half of it.")
        await page.select_option("dialog select", "critical")
        await page.click("dialog .primary")
        await shows(page, step(2, ".risk"), "Critical risk")
        await shows(page, step(2, ".step-instruction"), "Change half of it.")
        await page.click("#history-box summary")
        await shows(page, "#history", "instruction was “Change it.”; risk was “high” by ann")

        says.answers = [RunnerFailed("no_luck", "it did not work")]
        await page.press("#retry", "Enter")
        await shows(page, step(2, ".step-state"), "Waits for approval")
        await expect(page.locator("#task-title")).to_be_focused()
        await page.click(step(2, ".step-actions >> text=Approve"))
        await shows(page, step(2, ".step-error"), "it did not work (no_luck)")
        await shows(page, "#halted-text", "Step 2: it did not work (no_luck)")
        await reloads(page, person)
        await page.click(step(2, ".step-actions >> text=Retry"))
        await shows(page, step(2, ".step-result"), "CHANGE HALF OF IT.")
        await shows(page, "#status", "Completed")
        await shows(page, step(2, ".step-facts"), "2 tries")
    seen = await person.sees()
    assert [(e["by"], e["reason"]) for e in seen["history"] if e["what"] == "step_rejected"] == [("ann", "too <much>")]


async def test_what_is_decided_without_a_worker_stays_decided(
    page: Any, browser: Any, address: str, person: Person, working: Working
) -> None:
    risks = ("low", "medium", "high", "critical")
    await person.makes(steps=[{**PLAN[0], "title": risk, "risk": risk, "approval": True} for risk in risks])
    async with working():
        await person.is_("waiting")
    await page.goto(f"{address}/workspace/tasks/{person.task_id}")
    await shows(page, "#approve-all-go", "Approve 2 steps")
    await page.select_option("#up-to", "high")
    await page.click("#approve-all-go")
    for n in (1, 2, 3):
        await shows(page, step(n, ".step-state"), "Approved, not begun")
    assert await page.locator("#approve-all").is_hidden()
    await shows(page, "#undone", "All up to high risk were approved")
    await shows(page, "#tasks", "Waits for a worker")
    await reloads(page, person)
    await expect(page.locator(step(1, ".step-actions button:visible"))).to_have_text(["Reject…"])
    second = await (await browser.new_context()).new_page()  # somebody else sees it, and decides otherwise
    await second.goto(f"{address}/workspace/tasks/{person.task_id}")
    await shows(second, step(1, ".step-state"), "Approved, not begun")
    await second.click(step(1, ".step-actions >> text=Reject…"))
    await second.fill("dialog input", "rather not")
    await second.select_option("dialog select", "continue")
    await second.click("dialog .strong")
    for screen in (second, page):
        await shows(screen, step(1, ".step-decided"), "Rejected: rather not")
        await shows(screen, "#undone", "Step 1 was rejected; the task goes on without it")
    async with working():
        await shows(page, step(4, ".step-state"), "Waits for approval")
        await expect(page.locator("#undone")).to_be_hidden()
        await page.click(step(4, ".step-actions >> text=Reject…"))
        await page.fill("dialog input", "not needed")
        await page.select_option("dialog select", "continue")
        await page.click("dialog .strong")
        await shows(page, step(4, ".step-state"), "Left out")
        await shows(page, "#status", "Completed")
        await reloads(page, person)


@pytest.mark.long
async def test_a_task_is_made_with_the_keyboard(page: Any, address: str, person: Person, working: Working) -> None:
    await page.goto(f"{address}/workspace/tasks")
    await page.fill("#goal", "x" * 40_000)
    await page.click("#submit")
    await shows(page, "#start-problem", "item_too_big, field goal")
    await page.fill("#goal", "Count.")
    await page.select_option("#plan", "own")
    await page.get_by_label("Title").fill("One")
    await page.get_by_label("Instruction").fill("Say one.")
    await page.press("#add-step", "Enter")
    await page.keyboard.type("Two")
    await page.keyboard.press("Tab")
    await page.keyboard.type("Say two.")
    await page.locator(".own-step").nth(1).get_by_label("Risk").select_option("low")
    await page.select_option("#runner", "scripted")
    await page.fill("#who", "ann")
    await page.reload()  # what was written is still there
    await expect(page.locator(".own-step")).to_have_count(2)
    await page.press("#goal", "Control+Enter")
    await shows(page, "#task-title", "Count.")
    await shows(page, step(2, ".step-title"), "Two")
    await shows(page, "#facts", "asked for by ann")
    await shows(page, "#status", "Queued")
    person.task_id = page.url.rpartition("/")[2]
    seen = await person.sees()
    assert [(s["title"], s["risk"], s["approval"]) for s in seen["steps"]] == [
        ("One", "medium", True),
        ("Two", "low", False),
    ]
    assert seen["by"] == "ann"
    assert await page.input_value("#goal") == ""
    async with working():
        await shows(page, step(1, ".step-state"), "Waits for approval")
        await page.click("#cancel")
        await page.keyboard.type("enough")
        await page.keyboard.press("Enter")
        await shows(page, "#status", "Cancelled")
        await shows(page, step(2, ".step-state"), "Cancelled")
        await expect(page.locator("#task-title")).to_be_focused()
        await shows(page, "#announce", "The task was cancelled by ann")
    await page.goto(f"{address}/workspace/tasks/run_none")
    await shows(page, "#task-problem", "task_not_found")
    await page.goto(f"{address}/workspace/tasks")
    await page.click("#tasks a")
    await shows(page, "#task-title", "Count.")


@pytest.mark.long
async def test_the_planning_is_watched_and_what_hermes_asks_is_answered(
    page: Any, address: str, person: Person, working: Working, says: Says
) -> None:
    says.answers = ["I had rather not.", "Nor now."]
    async with working():
        await person.makes(planner="scripted", metadata={"script": "tokens=6 ask=3"})
        await page.goto(f"{address}/workspace/tasks/{person.task_id}")
        await shows(page, "#planning", "scripted makes the plan.")
        await shows(page, "#planning .live-output", "w1 w2 w3")
        await shows(page, "#planning .ask[data-state=open]", "rm -rf build")
        await page.press("#waits", "Enter")
        await expect(page.locator("#planning .ask-buttons button").first).to_be_focused()
        await page.keyboard.press("Enter")
        await shows(page, "#history", "What was said is no plan")  # and it is asked once more
        await page.locator("#planning .ask[data-state=open]").get_by_text("Deny").click()
        await shows(page, "#halted-text", "no_plan")
        await shows(page, "#planning", "scripted made no plan.")
        first = next(e for e in (await person.sees())["history"] if e["what"] == "planning")["detail"]["run_id"]
        assert "[approval: once]" in (await person.client.get(f"/v1/runs/{first}/result")).text
        await person.makes(steps=[{**PLAN[0], "metadata": {"script": "tokens=4 ask=2"}}], runner="scripted")
        await page.goto(f"{address}/workspace/tasks/{person.task_id}")
        await shows(page, step(1, ".ask-command"), "rm -rf build")
        await shows(page, step(1, ".live-output"), "w1 w2")
        await shows(page, "#history", "asks for an approval")  # the last thing that happens before an answer
        await reloads(page, person)
        await page.click(step(1, ".ask >> text=Deny"))
        await shows(page, step(1, ".step-result"), "[approval: deny]")
    [answered] = [e for e in (await person.sees())["history"] if e["what"] == "input_answered"]
    assert answered["detail"]["answer"] == "deny"


@pytest.mark.long
async def test_it_fits_a_phone_and_is_labelled(
    browser: Any, address: str, person: Person, working: Working, says: Says
) -> None:
    says.answers = ["w" * 400, RunnerFailed("c" * 60, "m" * 300)]
    long = [{**step_, "title": "t" * 200, "instruction": f"{'i' * 700} {step_['instruction']}"} for step_ in PLAN]
    async with working():
        await person.makes(goal="g" * 300, steps=long)
        await person.is_("waiting")
        await person.says("steps/2/edit", title="e" * 150, by="b" * 60, reason="r" * 300)
        await person.says("steps/2/approve", reason="a" * 300)
        for scheme in ("light", "dark"):
            page = await browser.new_page(color_scheme=scheme)
            await page.goto(f"{address}/workspace/tasks/{person.task_id}")
            await shows(page, "#halted-text", "mmm")
            await page.click("#history-box summary")
            for width in (320, 360, 800, 1200):
                await page.set_viewport_size({"width": width, "height": 740})
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
            await page.set_viewport_size({"width": 360, "height": 740})
            assert await page.evaluate(FAINT) == []
            await page.click(step(2, ".step-actions >> text=Edit…"))
            assert await page.evaluate("document.querySelector('dialog').scrollWidth") <= 360
            assert await page.evaluate(UNLABELLED) == []
            assert await page.evaluate(FAINT) == []
