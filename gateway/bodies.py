"""What a request's body must keep to: its size, before anything is read into memory, and its media type.

Pure ASGI: nothing is buffered, and bodies within the limit pass through untouched.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.problems import BodyTooLarge, UnsupportedMediaType, problem_of, render

__all__ = ["InputAnswer", "LimitBodies", "json_body"]


class InputAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST /v1/runs/{run_id}/input``. ``true`` and ``false`` mean ``once`` and ``deny`` to an approval."""

    request_id: str
    answer: str | bool


class LimitBodies:
    """Answers 413 to bodies of more than ``limit`` bytes: at once where the length is declared, else at the byte that
    is too many. The connection is closed, so that the rest of the body is never read."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"")
        # Length first: digits by the thousand would be an expensive integer.
        if declared.isdigit() and (len(declared) > 19 or int(declared) > self._limit):
            response = render(problem_of(self._refusal()), {"Connection": "close"})
            return await response(scope, receive, send)
        await self._app(scope, self._counting(receive), send)

    def _counting(self, receive: Receive) -> Receive:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise self._refusal()
            return message

        return counted

    def _refusal(self) -> BodyTooLarge:
        return BodyTooLarge(f"a body may have up to {self._limit} bytes")


async def json_body(request: Request) -> bytes:
    """The body of a request that must be JSON. Raises ``UnsupportedMediaType``, ``BodyTooLarge``.

    The media type is required, not guessed: a form of another site can post text without asking the browser's
    permission, JSON it cannot.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        named = f"not {media_type[:100]!r}" if media_type else "and this request named none"
        raise UnsupportedMediaType(f"send the body as application/json, {named}")
    return await request.body()
