"""The password in front of everything: pure ASGI, outside of the stream route and of FastAPI.

What is not named here as open is closed, so that a route that somebody adds is closed as well. A closed route gives
away nothing, not even whether it exists.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.problems import LoginRequired, problem_of, render
from gateway.webui.login import Login
from gateway.webui.replies import refusal

__all__ = ["Gate", "cookies_of"]

OPEN = frozenset(
    {
        "/healthz",
        "/readyz",
        "/metrics",
        "/login",
        "/ui/login.js",
        "/ui/style.css",
        "/ui/icon.svg",
        "/favicon.ico",
        "/api/auth/login",
        "/api/auth/status",
    }
)


class Gate:
    """Passes on what is open, and what comes with a login. Everything else gets 401, a browser's page the login."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app, self._login = app, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or await self._passes(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refused(scope)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _passes(self, scope: Scope) -> bool:
        return _path(scope) in OPEN or await self._login.is_in(cookies_of(scope, self._login.cookie))


def cookies_of(scope: Scope, name: str) -> list[str]:
    """The values of all cookies of that name, in the request's order: a browser may hold one for each of several
    paths."""
    sent = b"; ".join(value for key, value in scope["headers"] if key == b"cookie").decode("latin-1")
    pairs = (pair.partition("=") for pair in sent.split(";"))
    return [value.strip().strip('"') for key, _, value in pairs if key.strip() == name]


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def _refused(scope: Scope) -> Response:
    path = _path(scope)
    if path.startswith("/api/"):
        return refusal("Authentication required", 401)
    accepts = next((value for key, value in scope["headers"] if key == b"accept"), b"")
    if scope["method"] in ("GET", "HEAD") and b"text/html" in accepts and not path.startswith("/v1/"):
        # Relative, for a proxy may serve all of this under a path of its own.
        way = "../" * (path.count("/") - 1) + "login"
        if path.startswith("/workspace/"):
            way += f"?next={quote(path[1:], safe='')}"  # `/` names its run behind the #, which the browser keeps
        return RedirectResponse(way, 302, {"Cache-Control": "no-store"})
    return render(problem_of(LoginRequired("this gateway has a password: POST it to api/auth/login")))
