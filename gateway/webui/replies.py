"""JSON as the WebUI's front ends take it: no problem documents, but an object with ``error`` in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

__all__ = ["refusal", "reply"]


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``value`` as JSON. Nothing here may be cached."""
    return Response(
        msgspec.json.encode(value),
        status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def refusal(error: str, status: int, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """``{"error": …}``, with whatever else a client looks for beside it."""
    return reply({"error": error, **more}, status, headers)
