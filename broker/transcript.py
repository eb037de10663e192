"""A run → the messages that it adds to its session: what was asked, and what came of it. No IO.

Forms (source: docs/webui.md, “Sessions”), each with ``timestamp`` (seconds) and ``run_id``:

    {role: "user", content}
    {role: "assistant", content, reasoning?, tool_calls?, model?}    the message of each round. The last is the run's
                                                                     final message, or what there was of it where it
                                                                     did not complete (``_partial``: true)
    {role: "tool", content, tool_call_id, name, is_error?}           what a tool answered, behind the round's message
    {role: "assistant", content, _error: true, error_type}           why it did not complete

A run that has not ended adds nothing yet: what was asked is the session's pending message until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from broker.records import RunRecord

__all__ = ["final_messages", "messages_of", "plain_message", "title_of", "user_message"]

_TITLE_MAX = 64


def title_of(message: object) -> str:
    """The beginning of what was asked, on one line."""
    words = " ".join(str(message or "")[: _TITLE_MAX * 8].split())
    return words if len(words) <= _TITLE_MAX else words[: _TITLE_MAX - 1].rstrip() + "…"


def messages_of(record: RunRecord) -> list[dict[str, Any]]:
    """What an ended run adds; ``[]`` for one that has not ended."""
    if not record.is_ended:
        return []
    asked = user_message(record.run_id, record.request, record.created)
    outcome = record.outcome or {}
    item = outcome.get("item") or {}
    # The fence's own time, as whoever watched was told: front ends know a message again by its time and its text.
    ended = item.get("ts") or record.ended or record.created
    return [asked, *final_messages(record.run_id, str(outcome.get("type")), item, ended)]


def user_message(run_id: str, request: Mapping[str, Any], created: float) -> dict[str, Any]:
    """What was asked, as a message of the session."""
    asked = (request.get("input") or {}).get("message")
    return {"role": "user", "content": str(asked or ""), "timestamp": created, "run_id": run_id}


def final_messages(run_id: str, fence: str, item: Mapping[str, Any], ended: float) -> list[dict[str, Any]]:
    """What a fence (``final``, ``failed``, ``cancelled``) with the fields ``item`` adds to the session."""
    steps = [step for step in item.get("steps") or () if isinstance(step, Mapping)]
    found = [*_steps(run_id, (s for s in steps if not s.get("behind")), ended)]
    message = item.get("message") if fence == "final" else item.get("partial")
    if isinstance(message, Mapping):
        partial = {} if fence == "final" else {"_partial": True}
        found.append(plain_message(message) | {"timestamp": ended, "run_id": run_id, **partial})
    found += _steps(run_id, (s for s in steps if s.get("behind")), ended)
    if fence in ("failed", "cancelled"):
        why = {"_error": True, "error_type": str(item.get("code") or fence)}
        notice = {"role": "assistant", "content": str(item.get("message") or fence), **why}
        found.append({**notice, "timestamp": ended, "run_id": run_id})
    return found


def _steps(run_id: str, steps: Iterable[Mapping[str, Any]], ended: float) -> Iterator[dict[str, Any]]:
    """What came before, or behind, a fence's message (``broker.steps``)."""
    for step in steps:
        whose = {"timestamp": step.get("ts") or ended, "run_id": run_id}
        message = step.get("message")
        if step.get("type") == "message" and isinstance(message, Mapping):
            yield plain_message(message) | whose
        elif step.get("type") == "tool":
            said = str(step.get("error") or step.get("result") or "")
            known = {"role": "tool", "content": said, "tool_call_id": str(step.get("call_id") or "")}
            is_error = {"is_error": True} if "error" in step else {}
            yield {**known, "name": str(step.get("name") or ""), **is_error, **whose}


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A merged message (a list of blocks) → one whose ``content`` is text, as chat front ends keep it."""
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else _joined(blocks, "text", "refusal")
    plain: dict[str, Any] = {"role": str(message.get("role") or "assistant"), "content": text}
    if reasoning := _joined(blocks, "reasoning"):
        plain["reasoning"] = reasoning
    if calls := list(_calls(blocks)):
        plain["tool_calls"] = calls
    if isinstance(message.get("model"), str):
        plain["model"] = message["model"]
    return plain


def _joined(blocks: list[Mapping[str, Any]], *types: str) -> str:
    return "".join(str(block.get("text") or "") for block in blocks if block.get("type") in types)


def _calls(blocks: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        if block.get("type") == "tool_call":
            given = block.get("raw") or block.get("input") or block.get("arguments")
            arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode("utf-8", "replace")
            function = {"name": str(block.get("name") or ""), "arguments": arguments}
            yield {"id": str(block.get("id") or ""), "type": "function", "function": function}
