"""The page in a real browser: what people see while runs stream, fail, are cancelled, lose items, or come in bursts."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.api import Broker
from broker.items import (
    Cost,
    Event,
    Failed,
    Final,
    Message,
    MessageDelta,
    ReasoningDelta,
    ToolCallDelta,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
    Usage,
)
from gateway.app import create_app
from tests.gateway.conftest import Play, Serve

playwright = pytest.importorskip("playwright.async_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    if CHROMIUM is None:
        reason = "there is no Chromium on this machine (Debian: apt install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    playwright.expect.set_options(timeout=30_000)
    async with playwright.async_playwright() as driver:
        opened = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        await opened.close()


@pytest.fixture
async def address(broker: Broker, serve: Serve) -> AsyncIterator[str]:
    async with serve(create_app(broker=broker)) as served:
        yield served


@pytest.fixture
async def page(browser: Any) -> AsyncIterator[Any]:
    """A page on which no script may fail and no policy may be broken."""
    opened = await browser.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda line: wrong.append(line.text) if "Content Security" in line.text else None)
    yield opened
    assert wrong == []


async def shows(page: Any, selector: str, text: str) -> None:
    await playwright.expect(page.locator(selector)).to_contain_text(text, timeout=30_000)


async def test_a_run_is_started_with_the_keyboard(page: Any, address: str, broker: Broker) -> None:
    await page.goto(address)
    await page.select_option("#runner", "scripted")
    await page.click("details.options summary")
    await page.fill("#session", "s-1")
    await page.fill("#metadata", "a = b\nc=d=e")
    await page.fill("#prompt", "hello")
    await page.press("#prompt", "Control+Enter")
    await shows(page, "#run-title", "hello")
    await shows(page, "#status", "queued")
    await shows(page, "#runs", "hello")
    run_id = page.url.rpartition("#run=")[2]
    record = await broker.runs.get(run_id)
    assert (record.session_id, record.metadata) == ("s-1", {"a": "b", "c": "d=e"})
    assert await page.input_value("#prompt") == ""


async def test_the_runner_that_worked_last_is_proposed(page: Any, address: str, play: Play) -> None:
    await page.goto(address)
    await playwright.expect(page.locator("#runner")).to_have_value("hermes")
    await (await play("hello")).end()
    await page.reload()
    await playwright.expect(page.locator("#runner")).to_have_value("scripted")
    await page.goto(f"{address}/workspace/tasks")
    await playwright.expect(page.locator("#runner")).to_have_value("scripted")
    await playwright.expect(page.locator("#plan")).to_have_value("own")  # what is scripted makes no plan
    await page.select_option("#runner", "hermes")
    await playwright.expect(page.locator("#plan")).to_have_value("made")
    await page.goto(address)
    await shows(page, "#runs", "hello")
    await playwright.expect(page.locator("#runner")).to_have_value("hermes")


async def test_what_is_wrong_is_shown_as_it_is(page: Any, address: str) -> None:
    await page.goto(address)
    await page.fill("#prompt", "x" * 10_001)
    await page.click("#submit")
    await shows(page, "#start-problem", "item_too_big, field input.message")
    await page.goto(f"{address}/#run=run_none")
    await shows(page, "#run-problem", "run_not_found")
    await shows(page, "#status", "unknown")
    assert "waiting" not in (await page.get_attribute("#output", "class") or "")


async def test_a_live_run_survives_a_reload_and_has_as_many_screens_as_you_like(
    page: Any, browser: Any, address: str, play: Play
) -> None:
    run = await play("look")
    await page.goto(f"{address}/#run={run.id}")
    await run.append(ReasoningDelta(text="let me see"))
    await run.say("one ", "two ")
    await shows(page, ".block.text", "one two")
    await shows(page, ".block.reasoning", "let me see")
    await shows(page, "#connection", "live")
    await run.append(
        ToolCallDelta(call_id="c1", name="terminal", arguments='{"command": "ls"}', index=1),
        ToolStarted(call_id="c1", name="terminal", args={"command": "ls"}),
    )
    await shows(page, ".tool[data-status=running] .tool-asked", "ls")
    second = await browser.new_page()
    await second.goto(page.url)
    await page.reload()
    await run.append(
        ToolCompleted(call_id="c1", name="terminal", result="a.txt", duration_ms=1234),
        ToolStarted(call_id="c2", name="web", args={}),
        ToolFailed(call_id="c2", name="web", error="no network", duration_ms=5),
    )
    await run.append(MessageDelta(text="\n\nthree", round=2))
    usage = {"input_tokens": 1200, "output_tokens": 34, "cache_read_tokens": 0, "reasoning_tokens": 5}
    await run.append(Usage(total=usage, **usage), Cost(amount="0.01", total="0.012", estimated=True))
    await run.append(Final(message={"role": "assistant", "content": "three"}, rounds=2))
    for screen in (page, second):
        await shows(screen, "#connection", "complete")
        await shows(screen, "#status", "completed")
        texts = await screen.locator(".block.text .body").all_inner_texts()
        assert [text.strip() for text in texts] == ["one two", "three"]
        assert await screen.locator(".tool").count() == 2
        await shows(screen, ".tool[data-status=completed] .tool-time", "1.2 s")
        await shows(screen, ".tool[data-status=failed] section >> nth=2", "no network")
        await shows(screen, "#figures", "1,200")
        await shows(screen, "#figures", "about $0.012")
        await shows(screen, "#runs", "completed")
    await page.click(".tool[data-status=completed] summary")
    await shows(page, ".tool[data-status=completed] section >> nth=2", "a.txt")
    assert await page.locator("#cancel").is_hidden()


async def test_a_failure_and_a_restart(page: Any, address: str, play: Play) -> None:
    run = await play()
    await page.goto(f"{address}/#run={run.id}")
    await run.say("of the first attempt")
    await shows(page, ".block.text", "of the first attempt")
    await run.append(Event(name="run.restarted", payload={"attempt": 2}))
    await shows(page, ".note", "Attempt 2")
    assert await page.locator(".block.text").count() == 0
    await run.append(Event(name="warning", payload={"code": "price_unknown", "model": "m", "message": "No price."}))
    await playwright.expect(page.locator(".note >> nth=1")).to_have_text("warning No price.")
    await run.append(Failed(code="provider_error", message="401 <b>unauthorized</b>", retryable=True))
    await shows(page, ".note[data-level=error]", "provider_error")
    await shows(page, ".note[data-level=error]", "401 <b>unauthorized</b> It may succeed")


async def test_cancelling(page: Any, address: str, play: Play, broker: Broker) -> None:
    run = await play()
    await page.goto(f"{address}/#run={run.id}")
    await run.say("go on")
    await page.press("#cancel", "Enter")
    await shows(page, "#status", "cancelling")
    # The keyboard keeps its place: a button that is switched off would have thrown it to the top of the page.
    await playwright.expect(page.locator("#run-title")).to_be_focused()
    assert (await broker.runs.get(run.id)).cancel_requested
    queued = await play("not yet", claim=False)
    await page.goto(f"{address}/#run={queued.id}")
    await page.click("#cancel")
    await shows(page, "#status", "cancelled")
    await shows(page, ".note", "Cancelled")


async def test_what_retention_removed_is_said_and_the_message_mends_it(
    browser: Any, serve: Serve, memory_settings: Any, page: Any
) -> None:
    from broker import api
    from broker.requests import RunInput, RunRequest
    from tests.gateway.conftest import Script

    small = memory_settings.model_copy(update={"run_max_items": 3})
    async with api.open(settings=small) as broker, serve(create_app(broker=broker)) as address:
        record, _ = await broker.runs.create(RunRequest(input=RunInput(message="hi")))
        run = Script(broker, record)
        await run.claim()
        await run.say("a", "b", "c", "d", "e")
        await page.goto(f"{address}/#run={run.id}")
        await shows(page, ".note", "Items 1 to 2 are no longer kept")
        await shows(page, ".block.text", "cde")
        await run.append(Message(message={"role": "assistant", "content": [{"type": "text", "text": "abcde"}]}))
        await shows(page, ".block.text", "abcde")


async def test_a_burst_leaves_the_page_responsive(page: Any, address: str, play: Play) -> None:
    run = await play()
    await page.goto(f"{address}/#run={run.id}")
    await run.say("w0 ")
    await shows(page, ".block.text", "w0")
    await page.evaluate(
        """() => { window.tasks = []; new PerformanceObserver(list => {
            for (const entry of list.getEntries()) window.tasks.push(entry.duration);
        }).observe({entryTypes: ['longtask']}); }"""
    )
    for start in range(1, 4_001, 400):
        await run.say(*(f"w{n} " for n in range(start, start + 400)))
    await run.end()
    await shows(page, "#connection", "complete")
    text = await page.locator(".block.text .body").inner_text()
    assert text.split() == [f"w{n}" for n in range(4_001)]
    assert max(await page.evaluate("window.tasks"), default=0) < 1_000


async def test_the_page_is_announced_and_labelled(page: Any, address: str, play: Play) -> None:
    run = await play()
    await page.goto(f"{address}/#run={run.id}")
    await run.append(ToolStarted(call_id="c", name="terminal"))
    await shows(page, "#announce", "Tool terminal started")
    await run.end()
    await shows(page, "#announce", "Run completed")
    unlabelled = await page.evaluate(
        """() => [...document.querySelectorAll('input, textarea, select, button, a, summary')]
            .filter(it => !it.innerText?.trim() && !it.labels?.length && !it.ariaLabel && it.offsetParent).length"""
    )
    assert unlabelled == 0


async def test_nothing_is_wider_than_the_screen(page: Any, address: str, play: Play) -> None:
    run = await play("a" * 300)
    await run.say("x" * 500)
    await run.append(ToolStarted(call_id="c", name="terminal", args={"command": "y" * 400}))
    await run.append(Failed(code="z" * 30, message="m" * 300))
    await page.goto(f"{address}/#run={run.id}")
    await shows(page, ".note[data-level=error]", "mmm")
    for width in (320, 390, 800, 1200):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_a_gateway_that_restarts_loses_and_doubles_nothing(
    page: Any, broker: Broker, serve: Serve, play: Play
) -> None:
    run = await play()
    async with serve(create_app(broker=broker)) as address:
        await page.goto(f"{address}/#run={run.id}")
        await run.say("one ")
        await shows(page, ".block.text", "one")
    await shows(page, "#connection", "reconnecting")
    await run.say("two ")
    broker.hub._draining = False  # one broker, two gateways in turn
    async with serve(create_app(broker=broker), port=int(address.rpartition(":")[2])):
        await shows(page, ".block.text", "one two")
        await run.say("three")
        await run.end()
        await shows(page, "#connection", "complete")
        assert await page.locator(".block.text .body").inner_text() == "one two three"


async def test_an_approval_is_answered_with_a_button(page: Any, address: str, play: Play, broker: Broker) -> None:
    run = await play("clean up")
    await page.goto(f"{address}/#run={run.id}")
    await run.ask()
    await shows(page, ".ask[data-state=open] .ask-title", "Approval needed")
    await shows(page, ".ask-command", "rm -rf build")
    await shows(page, ".ask-text", "deletes the folder “build”")
    await shows(page, ".ask-state", "5 min left")
    await shows(page, "#asks", "Waits for your answer")
    await shows(page, "#announce", "Approval needed: deletes the folder “build”. rm -rf build")
    assert (await page.title()).startswith("? clean up")
    buttons = await page.locator(".ask-buttons button").all_inner_texts()
    assert buttons == ["Approve once", "Approve for this session", "Always approve", "Deny"]
    assert await page.locator(".ask-form").count() == 0
    await page.click("text=Approve for this session")
    await shows(page, ".ask-state", "Sent: session")
    settled = await broker.runs.asks.look(run.id, "q1")
    assert settled is not None
    assert (settled.answer, settled.how) == ("session", "answered")
    assert await page.locator(".ask-buttons button:enabled").count() == 0
    await run.settled("q1", "session")
    await shows(page, ".ask[data-state=answered] .ask-state", "Answered: session")
    assert await page.locator(".ask-buttons").is_hidden()
    assert await page.locator("#asks").is_hidden()
    await run.end()
    await shows(page, ".ask-state", "Answered: session")


async def test_a_question_is_answered_with_the_keyboard(page: Any, address: str, play: Play, broker: Broker) -> None:
    run = await play()
    await page.goto(f"{address}/#run={run.id}")
    await run.ask(kind="question", payload={"question": "Which colour?"}, choices=["red", "green"], free=True)
    await shows(page, ".ask-text", "Which colour?")
    await page.press("#asks", "Enter")
    await playwright.expect(page.locator(".ask-buttons button >> nth=0")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await playwright.expect(page.get_by_label("Or another answer")).to_be_focused()
    await page.keyboard.press("Enter")  # nothing is written yet: nothing is sent
    await page.keyboard.type("a deep <blue>")
    await page.keyboard.press("Enter")
    await shows(page, ".ask-state", "Sent: a deep <blue>")
    # The field that went away left the keyboard's place where it was.
    await playwright.expect(page.locator(".ask")).to_be_focused()
    settled = await broker.runs.asks.look(run.id, "q1")
    assert settled is not None
    assert settled.answer == "a deep <blue>"
    await run.settled("q1", "a deep <blue>")
    await shows(page, ".ask-state", "Answered: a deep <blue>")
    await playwright.expect(page.locator(".ask")).to_be_focused()


async def test_an_answer_from_elsewhere_closes_it_here(
    page: Any, browser: Any, address: str, play: Play, broker: Broker
) -> None:
    run = await play()
    second = await browser.new_page()
    for screen in (page, second):
        await screen.goto(f"{address}/#run={run.id}")
    for name in ("q1", "q2", "q3", "q4"):
        await run.ask(name)
    await shows(page, "#asks", "Waits for 4 answers")
    await second.click(".ask >> nth=0 >> text=Deny")
    await run.settled("q1", "deny")
    await run.settled("q2", "deny", "expired")
    for screen in (page, second):
        await shows(screen, ".ask >> nth=0 >> .ask-state", "Answered: deny")
        await shows(screen, ".ask >> nth=1 >> .ask-state", "Nobody answered in time: deny")
        await shows(screen, "#asks", "Waits for 2 answers")
    # Somebody is quicker, and the item that says so is still on its way.
    await broker.runs.answer(run.id, "q3", "once")
    await page.click(".ask >> nth=2 >> text=Deny")
    await shows(page, ".ask >> nth=2 >> .ask-state", "Answered: once")
    await run.end()
    for screen in (page, second):
        await shows(screen, ".ask >> nth=3 >> .ask-state", "The run has ended")
        assert await screen.locator("#asks").is_hidden()


async def test_an_answer_that_does_not_arrive_may_be_given_again(
    page: Any, address: str, play: Play, broker: Broker
) -> None:
    run = await play()
    await page.goto(f"{address}/#run={run.id}")
    await run.ask()
    await shows(page, ".ask-command", "rm -rf build")
    await page.route("**/input", lambda route: route.abort())
    await page.click("text=Approve once")
    await shows(page, ".ask .problem", "The gateway cannot be reached")
    await page.unroute("**/input")
    await page.click("text=Approve once")
    await shows(page, ".ask-state", "Sent: once")
    assert await page.locator(".ask .problem").is_hidden()


async def test_a_reload_and_a_restart_keep_what_is_asked_right(page: Any, address: str, play: Play) -> None:
    run = await play()
    await run.ask("old")
    await page.goto(f"{address}/#run={run.id}")
    await shows(page, ".ask[data-state=open]", "rm -rf build")
    await page.reload()
    await shows(page, ".ask[data-state=open]", "rm -rf build")
    assert await page.locator(".ask").count() == 1
    await run.append(Event(name="run.restarted", payload={"attempt": 2}))
    await shows(page, ".note", "Attempt 2")
    assert await page.locator(".ask").count() == 0
    assert await page.locator("#asks").is_hidden()


async def test_an_ask_whose_item_retention_removed_is_found_in_the_record(
    page: Any, serve: Serve, memory_settings: Any
) -> None:
    from broker import api
    from broker.requests import RunInput, RunRequest
    from tests.gateway.conftest import Script

    small = memory_settings.model_copy(update={"run_max_items": 3})
    async with api.open(settings=small) as broker, serve(create_app(broker=broker)) as address:
        record, _ = await broker.runs.create(RunRequest(input=RunInput(message="hi")))
        run = Script(broker, record)
        await run.claim()
        await run.ask()
        await run.say("a", "b", "c", "d", "e")
        await page.goto(f"{address}/#run={run.id}")
        await shows(page, ".note", "no longer kept")
        await shows(page, ".ask[data-state=open] .ask-command", "rm -rf build")
        await page.click("text=Approve once")
        await shows(page, ".ask-state", "Sent: once")


async def test_a_run_that_is_to_ask_is_started_from_here(page: Any, address: str, broker: Broker) -> None:
    await page.goto(address)
    await page.select_option("#runner", "scripted")
    await page.click("details.options summary")
    await page.select_option("#approvals", "ask")
    await page.fill("#prompt", "hello")
    await page.click("#submit")
    await shows(page, "#run-title", "hello")
    record = await broker.runs.get(page.url.rpartition("#run=")[2])
    assert record.request["input"] == {"message": "hello", "approvals": "ask"}


async def test_an_ask_fits_a_phone_and_is_labelled(page: Any, address: str, play: Play) -> None:
    run = await play()
    await run.ask("a", payload={"command": "x" * 300, "description": "y" * 300})
    choices = ["z" * 200, "a choice of many words " * 8]
    await run.ask("q", kind="question", payload={"question": "w" * 300}, choices=choices, free=True)
    await page.goto(f"{address}/#run={run.id}")
    await shows(page, ".ask >> nth=1", "www")
    for width in (320, 390, 1200):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
    unlabelled = await page.evaluate(
        """() => [...document.querySelectorAll('input, textarea, select, button, a, summary')]
            .filter(it => !it.innerText?.trim() && !it.labels?.length && !it.ariaLabel && it.offsetParent).length"""
    )
    assert unlabelled == 0
