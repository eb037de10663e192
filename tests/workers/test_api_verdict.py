"""How a run at Hermes' API server ended → the code of its failure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.items import MessageDelta
from workers.hermes.api_events import ApiEvents
from workers.hermes.api_verdict import judge_end
from workers.hermes.calls import Batch


def _stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


def _read(*events: dict[str, Any]) -> tuple[ApiEvents, Batch]:
    seen = ApiEvents()
    return seen, seen.feed(_stream(*events))


def _text(batch: Batch) -> str:
    return "".join(item.text for item in batch if isinstance(item, MessageDelta))


def _delta(text: str) -> dict[str, Any]:
    return {"event": "message.delta", "delta": text}


def _tool(name: str, **more: Any) -> list[dict[str, Any]]:
    ended = {"event": "tool.completed", "tool": name, "duration": 0.5, "error": False, **more}
    return [{"event": "tool.started", "tool": name, "preview": "p"}, ended]


def _completed(output: str, **more: Any) -> dict[str, Any]:
    return {"event": "run.completed", "output": output, **more}


def _failed(**more: Any) -> dict[str, Any]:
    return {"event": "run.failed", **more}


@pytest.mark.parametrize(
    ("end", "code", "retryable"),
    [
        (_completed(""), "empty_reply", True),
        (_completed("⚠️ No reply: the model returned empty content after retries."), "empty_reply", True),
        (_completed("explainer.no_reply_prefixexplainer.empty_response"), "empty_reply", True),
        (_completed("Sum.\n\n⚠️ No reply: the maximum tool-iteration limit was reached."), "turn_limit", False),
        (_failed(output="Sum.", completed=False, turn_exit_reason="max_iterations_reached(1/1)"), "turn_limit", False),
        (_failed(error="HTTP 401: bad key"), "provider_auth", False),
        (_failed(error="HTTP 429: slow down"), "provider_rate_limit", True),
        (_failed(error="HTTP 500: oh"), "provider_error", True),
        (_failed(error="No inference provider configured. Run 'hermes model'"), "not_configured", False),
        (_failed(error="platform.api_server.provider_error_line"), "not_configured", False),
        (_failed(error="Hermes is not connected to any AI provider yet."), "not_configured", False),
        (_failed(error="division by zero"), "hermes_failed", False),
        (_failed(), "hermes_failed", False),
        ({"event": "run.cancelled"}, "interrupted", True),
        ({"event": "run.interrupted", "error": "Gateway shutdown interrupted the run."}, "interrupted", True),
    ],
)
def test_how_a_run_can_fail(end: dict[str, Any], code: str, retryable: bool) -> None:
    seen, batch = _read(end)
    failure = judge_end(seen)
    assert failure is not None
    assert (failure.code, failure.retryable) == (code, retryable)
    assert failure.message
    assert "explainer." not in failure.message
    assert "No reply" not in _text(batch), "a notice is no text of the model"
    if "Sum." in end.get("output", ""):
        assert _text(batch) == "Sum."


@pytest.mark.parametrize(
    "said",
    [
        "⚠️ No reply: none is needed.",
        "So.\n\n⚠️ No reply: none came back.",
        "Hermes has a maximum tool-iteration limit of 90.",
    ],
)
def test_what_the_model_said_is_no_notice_whatever_it_looks_like(said: str) -> None:
    seen, batch = _read(_delta(said), _delta("\n"), _completed(said))
    assert judge_end(seen) is None
    assert _text(batch) == f"{said}\n"


def test_text_ahead_of_a_tool_is_no_answer() -> None:
    seen, _ = _read(_delta("Let me."), *_tool("t"), _completed(""))
    failure = judge_end(seen)
    assert failure is not None
    assert failure.code == "empty_reply"
