"""The pages at ``/`` and ``/workspace/tasks``: a few static files, read once, served with a strict content policy.

No build step and nothing from elsewhere: the policy forbids it, so that it stays so.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["page_routes"]

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # Revalidated each time: a page of yesterday against a gateway of today is a fault that nobody finds.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


_ONE_TASK = "tasks.html, one folder deeper"


class _File(NamedTuple):
    content: bytes
    media_type: str
    tag: str


def _load() -> dict[str, _File]:
    files = {}
    for entry in resources.files("gateway").joinpath("ui").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _TYPES:
            content = entry.read_bytes()
            files[entry.name] = _file(content, _TYPES[suffix])
    return files


def _file(content: bytes, media_type: str) -> _File:
    return _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:20]}"')


def _deeper(page: _File) -> _File:
    """The same page for an address one folder below: what it names relatively lies one further up. (A ``<base>`` would
    tell it as well, if the page knew the prefix that a proxy serves it under.)"""
    return _file(page.content.replace(b'="../', b'="../../'), page.media_type)


def page_routes() -> list[Route]:
    """``/``, ``/login``, ``/workspace/tasks``, ``/workspace/tasks/{task_id}`` and ``/ui/{name}``. The files are read
    now."""
    files = _load()
    files[_ONE_TASK] = _deeper(files["tasks.html"])

    def answer(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise HTTPException(404)
        headers = {**_HEADERS, "ETag": file.tag}
        if file.tag in (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers={**headers, "Content-Type": file.media_type})

    async def page(request: Request) -> Response:
        return answer(request, "index.html")

    async def login(request: Request) -> Response:
        return answer(request, "login.html")

    async def tasks(request: Request) -> Response:
        return answer(request, "tasks.html")

    async def task(request: Request) -> Response:
        return answer(request, _ONE_TASK)

    async def part(request: Request) -> Response:
        return answer(request, request.path_params["name"])

    return [
        Route("/", page),
        Route("/login", login),
        Route("/workspace/tasks", tasks),
        Route("/workspace/tasks/", task),
        Route("/workspace/tasks/{task_id}", task),
        Route("/ui/{name}", part),
    ]
