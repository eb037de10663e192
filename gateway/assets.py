"""The page at ``/``: a few static files, read once, served with their types, tags and a strict content policy.

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
            files[entry.name] = _File(content, _TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return files


def page_routes() -> list[Route]:
    """``/``, ``/login`` and ``/ui/{name}``. The files are read now."""
    files = _load()

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

    async def part(request: Request) -> Response:
        return answer(request, request.path_params["name"])

    return [Route("/", page), Route("/login", login), Route("/ui/{name}", part)]
