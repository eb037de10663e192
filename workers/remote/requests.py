"""A request of ours → the body of ``POST /v1/runs`` at a runner service. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from broker.requests import RunRequest

__all__ = ["start_body"]

_PLACES = ("workspace", "profile")
"""Entries of our ``metadata`` that are fields of their own there."""


def start_body(request: RunRequest, *, run_id: str, session_id: str | None) -> dict[str, Any]:
    """``session_id`` is ours, or the run's id where it belongs to none: the service needs one."""
    wanted = request.input
    places = {name: request.metadata.get(name) for name in _PLACES}
    metadata: dict[str, Any] = {k: v for k, v in request.metadata.items() if k not in _PLACES}
    metadata |= {"runcast_run_id": run_id, "approvals": wanted.approvals}
    if wanted.max_turns is not None:
        metadata["max_turns"] = wanted.max_turns
    return {
        "session_id": session_id or run_id,
        "message": wanted.message,
        "attachments": [*msgspec.to_builtins(wanted.artifacts or []), *(wanted.attachments or [])],
        **places,
        "provider": wanted.provider,
        "model": wanted.model,
        "toolsets": wanted.toolsets or [],
        "source": "runcast",
        "metadata": metadata,
    }
