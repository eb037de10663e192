"""``/api/auth/…``: the password becomes a cookie, and the cookie ends. The shapes are the WebUI's."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.errors import BadRequest, StoreUnavailable
from gateway.bodies import json_body
from gateway.problems import decode_body
from gateway.routes.get import get
from gateway.webui.gate import cookies_of
from gateway.webui.login import WINDOW, Login, who_tries
from gateway.webui.replies import refusal, reply

__all__ = ["router"]

router = APIRouter(prefix="/api/auth", tags=["webui"])


class _Password(msgspec.Struct):
    password: str = ""


_PASSWORD = msgspec.json.Decoder(_Password)


def _login_of(request: Request) -> Login | None:
    login: Login | None = request.app.state.login
    return login


@router.post("/login")
async def log_in(request: Request) -> Response:
    """`{password}` → `{ok: true}` and a cookie. 401: it is another; 429: too many tries, `Retry-After` says when."""
    login = _login_of(request)
    if login is None:
        return reply({"ok": True, "message": "Auth not enabled"})
    who = who_tries(request.client.host if request.client else None)
    if not await login.may_try(who):
        return refusal("Too many attempts. Try again in a minute.", 429, {"Retry-After": str(WINDOW)})
    if not login.is_password(await _password(request)):
        return refusal("Invalid password", 401)
    await login.forget_tries(who)
    return reply({"ok": True}, headers={"Set-Cookie": _cookie(request, login, login.issue(), login.ttl)})


async def _password(request: Request) -> str:
    """Raises ``UnsupportedMediaType``: a form of another site could otherwise log somebody in."""
    try:
        given: _Password = decode_body(_PASSWORD, await json_body(request))
    except BadRequest:
        return ""
    return given.password


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """`{ok: true}`, and the cookie is worth nothing any more. 503: other gateways could not be told."""
    login = _login_of(request)
    if login is None:
        return reply({"ok": True})
    headers = {"Set-Cookie": _cookie(request, login, "", 0)}
    claim = login.read(cookies_of(request.scope, login.cookie))
    try:
        if claim is not None:
            await login.end(claim)
    except StoreUnavailable as error:
        return refusal(f"logged out here, but not yet everywhere: {error}", 503, {**headers, "Retry-After": "2"})
    return reply({"ok": True}, headers=headers)


@get(router, "/status")
async def status(request: Request) -> Response:
    """Whether there is a password, and whether this request came with a login."""
    login = _login_of(request)
    known = login is not None and await login.is_in(cookies_of(request.scope, login.cookie))
    stands: dict[str, Any] = {"auth_enabled": login is not None, "logged_in": known}
    absent = ("oidc_enabled", "passwordless_enabled", "passkeys_enabled", "passkey_feature_flag")
    return reply(stands | {"password_auth_enabled": login is not None, **dict.fromkeys(absent, False)})


def _cookie(request: Request, login: Login, value: str, seconds: int) -> str:
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{login.cookie}={value}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Lax{secure}"
