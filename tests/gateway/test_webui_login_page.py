"""The login page in a real browser: in by the password, on to where one was going, and back when the login ends."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from broker.api import Broker
from gateway.app import Gateway, create_app
from gateway.webui.settings import WebuiSettings
from tests.gateway.conftest import Play, Serve
from tests.gateway.test_page import browser

__all__ = ["browser"]

PASSWORD = "pa$$ wörd"


@pytest.fixture
def guarded(broker: Broker) -> Gateway:
    return create_app(broker=broker, webui=WebuiSettings(password=SecretStr(PASSWORD)))


async def log_in(page: Any, password: str) -> None:
    await page.fill("#password", password)
    await page.click("#submit")


async def test_in_by_the_password_on_to_the_run_and_out_again(
    browser: Any, guarded: Gateway, serve: Serve, play: Play
) -> None:
    run = await play("hello")
    await run.say("only for those who know")
    async with serve(guarded) as address:
        page = await browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(f"{address}/#run={run.id}")
        await page.wait_for_url(f"{address}/login**")
        await log_in(page, "wrong")
        await page.wait_for_selector("#login-problem:not([hidden])")
        assert await page.text_content("#login-problem") == "Invalid password"
        await log_in(page, PASSWORD)
        await page.wait_for_url(f"{address}/#run={run.id}")
        await page.wait_for_selector("text=only for those who know")
        await run.say(", and live")
        await page.wait_for_selector("text=only for those who know, and live")  # EventSource brings the cookie
        assert "session" not in await page.evaluate("document.cookie")

        await page.evaluate("fetch('api/auth/logout', {method: 'POST'})")
        await page.reload()
        await page.wait_for_url(f"{address}/login**")
        assert errors == []
        await page.close()


async def test_a_login_that_ended_sends_the_open_page_to_the_login(
    browser: Any, guarded: Gateway, serve: Serve
) -> None:
    async with serve(guarded) as address:
        page = await browser.new_page()
        await page.goto(address)
        await log_in(page, PASSWORD)
        await page.wait_for_selector("#runs-empty:not([hidden])")  # the first list is there, the next is seconds away
        await page.fill("#prompt", "hello")
        # Once the cookie is gone, whatever the page asks next leads it away: the click is there before.
        await page.evaluate("setTimeout(() => document.querySelector('#start #submit')?.click(), 300)")
        await page.context.clear_cookies()
        await page.wait_for_url(f"{address}/login**")
        await page.close()


@pytest.mark.parametrize(
    ("next_", "lands"),
    [
        ("/v1/runs", "/v1/runs"),
        ("https://elsewhere.example/", "/"),
        ("//elsewhere.example/", "/"),
        ("\\\\elsewhere.example", "/"),
        ("javascript:alert(1)", "/"),
        ("http://[", "/"),
    ],
)
async def test_the_way_on_never_leads_to_another_site(
    browser: Any, guarded: Gateway, serve: Serve, next_: str, lands: str
) -> None:
    async with serve(guarded) as address:
        page = await browser.new_page()
        await page.goto(f"{address}/login")
        await page.evaluate("next => history.replaceState(null, '', `login?next=${encodeURIComponent(next)}`)", next_)
        await log_in(page, PASSWORD)
        await page.wait_for_url(f"{address}{lands}")
        await page.close()


async def test_without_a_password_the_page_moves_on(browser: Any, broker: Broker, serve: Serve) -> None:
    async with serve(create_app(broker=broker, webui=WebuiSettings())) as address:
        page = await browser.new_page()
        await page.goto(f"{address}/login")
        await page.wait_for_url(f"{address}/")
        await page.close()
