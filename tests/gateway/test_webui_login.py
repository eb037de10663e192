"""The password: in front of everything, the same at every gateway, and no way around it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from broker import api
from broker.api import Broker
from broker.errors import StoreUnavailable
from broker.settings import Settings
from gateway.app import Gateway, create_app
from gateway.webui.gate import OPEN
from gateway.webui.login import TRIES, Login, who_tries
from gateway.webui.settings import WebuiSettings
from tests.gateway.conftest import Play, Serve, lifespan_of
from tests.gateways import Response

PASSWORD = "correct horse “battery” 漢字"


def guarded(broker: Broker, password: str = PASSWORD, **webui: Any) -> Gateway:
    return create_app(broker=broker, webui=WebuiSettings(password=SecretStr(password), **webui))


def connected(gateway: Gateway, address: tuple[str, int] = ("198.51.100.1", 4711), **more: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(gateway, raise_app_exceptions=False, client=address)
    return httpx.AsyncClient(transport=transport, **{"base_url": "http://gateway", **more})


@pytest.fixture
async def gateway(broker: Broker) -> AsyncIterator[Gateway]:
    made = guarded(broker)
    async with lifespan_of(made):
        yield made


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with connected(gateway) as opened:
        yield opened


async def log_in(client: httpx.AsyncClient, password: str = PASSWORD) -> httpx.Response:
    return await client.post("/api/auth/login", json={"password": password})


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The login's clocks, and no others, go ahead."""
    ahead = SimpleNamespace(time=lambda: time.time() + seconds, monotonic=lambda: time.monotonic() + seconds)
    monkeypatch.setattr("gateway.webui.login.time", ahead)


# What is closed.


def everything(gateway: Gateway) -> list[tuple[str, str]]:
    """Every route that there is, and some that there are not."""
    found = {("GET", "/v1/runs/r/stream"), ("GET", "/api/chat/stream"), ("GET", "/nowhere"), ("GET", "/api/nowhere")}
    routes: list[Any] = list(gateway.api.routes)
    while routes:
        route = routes.pop()
        routes.extend(getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", []))
        if path := getattr(route, "path", ""):
            found |= {(method, path.replace("{", "").replace("}", "")) for method in route.methods or ()}
    return sorted(found)


async def test_without_a_login_every_address_is_closed_but_those_that_are_named(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    routes = everything(gateway)
    assert {"/", "/v1/runs", "/v1/runs/run_id", "/v1/events", "/api/status", "/openapi.json"} <= {r[1] for r in routes}
    for method, path in routes:
        response = await client.request(method, path, content=b"{}", headers={"Content-Type": "application/json"})
        if path in OPEN:
            assert response.status_code not in (302, 404), (method, path)
        else:
            assert response.status_code == 401, (method, path)
    assert set(OPEN) - {path for _, path in routes} <= {"/favicon.ico", "/ui/login.js", "/ui/style.css", "/ui/icon.svg"}


@pytest.mark.parametrize(
    "path",
    [
        "/api/auth/status/../../status",
        "//healthz",
        "/healthz/",
        "/HEALTHZ",
        "/ui/app.js",
        "/ui/..%2flogin",
        "/login/x",
        "/healthz%00",
        "/healthz;/v1/runs",
        "/v1/runs?/healthz",
    ],
)
async def test_what_merely_looks_open_is_closed(broker: Broker, serve: Serve, path: str) -> None:
    async with serve(guarded(broker)) as address:
        response = await Response.open(int(address.rpartition(":")[2]), path)
        assert response.status == 401
        response.leave()


async def test_each_client_is_refused_in_its_own_way(client: httpx.AsyncClient) -> None:
    response = await client.get("/api/sessions")
    assert (response.status_code, response.json()) == (401, {"error": "Authentication required"})
    response = await client.get("/v1/runs/r/stream", headers={"Accept": "text/html"})
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, response.json()["code"]) == (401, "login_required")
    task = "../../login?next=workspace%2Ftasks%2Frun_1"
    for path, target in (
        ("/", "login"),
        ("/nowhere", "login"),
        ("/a/b/c", "../../login"),
        ("/workspace/tasks/run_1", task),
    ):
        response = await client.get(path, headers={"Accept": "text/html,application/xhtml+xml"})
        assert (response.status_code, response.headers["location"]) == (302, target)
    response = await client.post("/", headers={"Accept": "text/html"})
    assert response.status_code == 401


async def test_behind_a_prefix_it_is_the_same(broker: Broker) -> None:
    gateway = guarded(broker)
    transport = httpx.ASGITransport(gateway, root_path="/chat")
    async with lifespan_of(gateway), httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        assert (await client.get("/chat/healthz")).status_code == 200
        assert (await client.get("/chat/v1/runs")).status_code == 401
        response = await client.get("/chat/", headers={"Accept": "text/html"})
        assert response.headers["location"] == "login"


# What a login opens.


async def test_capabilities_say_that_there_is_a_password(client: httpx.AsyncClient) -> None:
    assert (await log_in(client)).status_code == 200
    assert (await client.get("/v1/capabilities")).json()["access"] == "password"


async def test_a_login_opens_requests_the_page_and_streams(gateway: Gateway, serve: Serve, play: Play) -> None:
    run = await play("hello")
    await run.say("a secret")
    await run.end()
    stream = f"/v1/runs/{run.id}/stream"
    async with serve(gateway) as address, httpx.AsyncClient(base_url=address) as client:
        assert "secret" not in (await client.get(stream)).text
        assert (await log_in(client)).json() == {"ok": True}
        assert "a secret" in (await client.get(stream)).text
        assert (await client.get("/v1/runs")).json()["runs"]
        assert "<title>Runcast</title>" in (await client.get("/")).text
        status = (await client.get("/api/status")).json()
        assert (status["auth_enabled"], status["authenticated"]) == (True, True)


async def test_the_cookie_is_for_http_alone_and_for_this_site(client: httpx.AsyncClient, broker: Broker) -> None:
    cookie = (await log_in(client)).headers["set-cookie"]
    name, _, value = cookie.partition("=")
    assert name == f"{broker.settings.namespace}_session"
    assert PASSWORD not in value
    assert cookie.split("; ")[1:] == ["Max-Age=2592000", "Path=/", "HttpOnly", "SameSite=Lax"]


async def test_over_https_the_cookie_stays_there(gateway: Gateway) -> None:
    async with connected(gateway, base_url="https://gateway") as client:
        assert (await log_in(client)).headers["set-cookie"].endswith("SameSite=Lax; Secure")
        assert (await client.get("/v1/runs")).status_code == 200


async def test_the_status_tells_who_asks(client: httpx.AsyncClient) -> None:
    async def stands() -> tuple[bool, bool, bool]:
        said = (await client.get("/api/auth/status")).json()
        return said["auth_enabled"], said["password_auth_enabled"], said["logged_in"]

    assert await stands() == (True, True, False)
    await log_in(client)
    assert await stands() == (True, True, True)


@pytest.mark.parametrize("cookies", ["{c}", "other=1; {c}", "{n}=nonsense; {c}", "a=b;{c};c", "x={v}; {c}"])
async def test_the_cookie_is_found_among_others(gateway: Gateway, cookies: str) -> None:
    login: Login = gateway.api.state.login
    name, value = login.cookie, login.issue()
    sent = cookies.format(c=f"{name}={value}", n=name, v=value)
    async with connected(gateway) as client:
        assert (await client.get("/v1/runs", headers={"Cookie": sent})).status_code == 200


def forgeries(login: Login, other: Login) -> list[str]:
    good = login.issue()
    expires, nonce, signature = good.split(".")
    return [
        "",
        ".",
        "..",
        good[:-1],
        good + "0",
        good.upper(),
        f"{int(expires) + 1}.{nonce}.{signature}",
        f"{expires}.{nonce[:-1]}0.{signature}" if nonce[-1] != "0" else f"{expires}.{nonce[:-1]}1.{signature}",
        f"{expires}.{nonce}.",
        f"{expires}.{nonce}.{login._sign(f'{expires}.{nonce}')}",
        f"{login._sign('')}",
        other.issue(),
        "é" * 40,
        "9" * 5_000,
    ]


async def test_no_other_value_is_a_login(gateway: Gateway, broker: Broker) -> None:
    login: Login = gateway.api.state.login
    other = Login("another password", 60, broker.settings, lambda: broker)
    async with connected(gateway) as client:
        for value in forgeries(login, other):
            sent = [(b"cookie", f"{login.cookie}={value}".encode())]
            assert (await client.get("/v1/runs", headers=sent)).status_code == 401, value


async def test_a_login_expires(gateway: Gateway, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await log_in(client)
    later(monkeypatch, 2_592_000 - 5)
    assert (await client.get("/v1/runs")).status_code == 200
    later(monkeypatch, 2_592_000 + 1)
    assert (await client.get("/v1/runs")).status_code == 401


# Several gateways.


@asynccontextmanager
async def another(broker: Broker, **how: Any) -> AsyncIterator[httpx.AsyncClient]:
    gateway = guarded(broker, **how)
    async with lifespan_of(gateway), connected(gateway) as client:
        yield client


async def test_a_login_counts_at_every_gateway_until_the_password_changes(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    await log_in(client)
    sent = {"Cookie": (await log_in(client)).headers["set-cookie"].partition(";")[0]}
    async with another(broker) as same, another(broker, password="a new one") as changed:
        assert (await same.get("/v1/runs", headers=sent)).status_code == 200
        assert (await changed.get("/v1/runs", headers=sent)).status_code == 401


async def test_another_secret_makes_other_logins(broker: Broker) -> None:
    def made(secret: str) -> Login:
        settings = broker.settings.model_copy(update={"secret": SecretStr(secret)})
        return Login(PASSWORD, 60, settings, lambda: broker)

    assert made("one").read([made("one").issue()]) is not None
    assert made("one").read([made("two").issue()]) is None


async def test_a_logout_counts_at_every_gateway(
    client: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.webui.login._REMEMBERED", 0.05)
    sent = {"Cookie": (await log_in(client)).headers["set-cookie"].partition(";")[0]}
    async with another(broker) as other:
        assert (await other.get("/v1/runs", headers=sent)).status_code == 200
        response = await client.post("/api/auth/logout", headers=sent)
        assert response.json() == {"ok": True}
        assert "Max-Age=0" in response.headers["set-cookie"]
        assert (await client.get("/v1/runs", headers=sent)).status_code == 401
        await asyncio.sleep(0.06)  # what is believed without asking
        assert (await other.get("/v1/runs", headers=sent)).status_code == 401
        assert (await other.post("/api/auth/logout", headers=sent)).status_code == 401


async def test_what_was_logged_out_is_forgotten_when_it_would_have_expired(
    client: httpx.AsyncClient, gateway: Gateway, broker: Broker
) -> None:
    login: Login = gateway.api.state.login
    value = login.issue()
    claim = login.read([value])
    assert claim is not None
    await client.post("/api/auth/logout", headers={"Cookie": f"{login.cookie}={value}"})
    left = await broker.store.call("TTL", broker.keys.logged_out(claim.nonce))
    assert 2_592_000 - 10 <= left <= 2_592_000


# Guessing.


async def test_wrong_passwords_are_refused_and_then_not_even_looked_at(client: httpx.AsyncClient) -> None:
    for wrong in ["", "correct horse", PASSWORD + " ", PASSWORD.upper(), "\ud800"][:TRIES]:
        response = await client.post(
            "/api/auth/login",
            content=json.dumps({"password": wrong}).encode(),
            headers={"Content-Type": "application/json"},
        )
        assert (response.status_code, response.json()) == (401, {"error": "Invalid password"})
        assert "set-cookie" not in response.headers
    response = await log_in(client)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "60"
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"password": 7}', b'{"password": null}', b"\xff", b"[" * 9_000])
async def test_a_body_without_a_password_is_a_wrong_one(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/api/auth/login", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 401


async def test_a_form_of_another_site_logs_nobody_in(client: httpx.AsyncClient) -> None:
    response = await client.post("/api/auth/login", data={"password": PASSWORD})
    assert response.status_code == 415
    assert "set-cookie" not in response.headers


async def test_tries_are_counted_by_address_over_all_gateways(gateway: Gateway, broker: Broker) -> None:
    second = guarded(broker)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(lifespan_of(second))
        here = await stack.enter_async_context(connected(gateway))
        there = await stack.enter_async_context(connected(second))
        elsewhere = await stack.enter_async_context(connected(gateway, ("203.0.113.9", 1)))
        for n in range(TRIES):
            assert (await log_in((here, there)[n % 2], "wrong")).status_code == 401
        assert (await log_in(here)).status_code == 429
        assert (await log_in(there)).status_code == 429
        assert (await log_in(elsewhere)).status_code == 200


async def test_tries_at_the_same_time_are_all_counted(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(log_in(client, "wrong") for _ in range(3 * TRIES)))
    assert sorted(a.status_code for a in answers) == [401] * TRIES + [429] * 2 * TRIES


async def test_the_right_password_forgets_the_wrong_ones(client: httpx.AsyncClient) -> None:
    for _ in range(3):
        for _ in range(TRIES - 1):
            assert (await log_in(client, "wrong")).status_code == 401
        assert (await log_in(client)).status_code == 200


async def test_the_count_ends_with_its_minute(
    client: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(TRIES + 1):
        await log_in(client, "wrong")
    key = broker.keys.login_tries("198.51.100.1")
    assert 0 < await broker.store.call("TTL", key) <= 60
    await broker.store.call("DEL", key)  # as its time does
    assert (await log_in(client)).status_code == 429  # the gateway counts, too
    later(monkeypatch, 61)
    assert (await log_in(client)).status_code == 200


@pytest.mark.parametrize(
    ("host", "who"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("", "unknown"),
        (None, "unknown"),
        ("a host", "unknown"),
    ],
)
def test_who_counts_as_one(host: str | None, who: str) -> None:
    assert who_tries(host) == who


# Without the store.


class Away:
    """A broker that cannot be had."""

    def __call__(self) -> Broker:
        raise StoreUnavailable("away")


async def test_without_the_store_logins_go_on_and_tries_are_counted_here(memory_settings: Settings) -> None:
    login = Login(PASSWORD, 60, memory_settings, Away())
    value = login.issue()
    assert await login.is_in([value])
    assert [await login.may_try("x") for _ in range(TRIES + 1)] == [True] * TRIES + [False]
    claim = login.read([value])
    assert claim is not None
    with pytest.raises(StoreUnavailable):
        await login.end(claim)
    assert not await login.is_in([value])


async def test_a_store_that_hangs_keeps_nobody_waiting(memory_settings: Settings) -> None:
    async with api.open(settings=memory_settings) as broker:
        asked = 0

        async def hanging(*_: object, **__: object) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()

        broker.store.pipeline = hanging  # type: ignore[method-assign]
        login = Login(PASSWORD, 60, memory_settings, lambda: broker)
        value = login.issue()
        async with asyncio.timeout(30):
            for _ in range(2):
                assert await login.is_in([value])
        assert asked == 1, "it is not asked each time"


async def test_a_logout_that_could_not_be_told_says_so(
    gateway: Gateway, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_in(client)
    monkeypatch.setattr(gateway.api.state.login, "_get_broker", Away())
    response = await client.post("/api/auth/logout")
    assert response.status_code == 503
    assert "Max-Age=0" in response.headers["set-cookie"]
    assert (await client.get("/v1/runs")).status_code == 401


# Without a password.


async def test_without_a_password_everything_is_open(broker: Broker) -> None:
    gateway = create_app(broker=broker, webui=WebuiSettings(password=SecretStr("  ")))
    async with lifespan_of(gateway), connected(gateway) as client:
        assert (await client.get("/v1/runs")).status_code == 200
        assert (await client.get("/api/auth/status")).json()["auth_enabled"] is False
        assert (await log_in(client, "x")).json() == {"ok": True, "message": "Auth not enabled"}
        assert (await client.post("/api/auth/logout")).json() == {"ok": True}
