"""A call → a run at the API server. What the server cannot be told is refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from broker.items import Event, Item
from workers.hermes.api_server import Lease
from workers.hermes.command import Call, RefusedCall, Unavailable
from workers.hermes.notices import warning
from workers.hermes.process import NotStarted

__all__ = ["Begun", "begin", "history_of", "session_path"]

_SAID_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that the server has accepted. ``before``: the session's row as it was, where one is resumed."""

    run_id: str
    session_id: str
    before: Mapping[str, Any]
    items: list[Item]


async def begin(lease: Lease, call: Call) -> Begun:
    """Raises ``RefusedCall`` for what the server cannot do, and for a session that it does not know; ``Unavailable``
    and ``NotStarted`` where it takes no runs, now or at all. Only after ``NotStarted`` may a run be there all the same.
    """
    await _check(lease, call)
    body: dict[str, Any] = {"input": call.prompt}
    body |= {name: value for name, value in (("model", call.model), ("provider", call.provider)) if value is not None}
    before: Mapping[str, Any] = {}
    items: list[Item] = []
    if call.resume is not None:
        before = await _session(lease, call.resume)
        body["session_id"] = call.resume
        if not lease.abilities.remembers:
            items += await _remind(lease, call.resume, body)
    run_id = await _post(lease, body)
    session_id = await _session_of(lease, run_id) or str(body.get("session_id") or run_id)
    payload = {"hermes_session_id": session_id}
    if call.resume not in (None, session_id):
        payload["rotated_from"] = str(call.resume)
    return Begun(run_id, session_id, before, [Event(name="hermes.session", payload=payload), *items])


async def _check(lease: Lease, call: Call) -> None:
    try:
        call.prompt.encode()
    except UnicodeEncodeError as error:
        raise RefusedCall("invalid_prompt", f"the prompt is no valid Unicode: {error}") from error
    if not call.yolo and not lease.asks:
        message = "Hermes' configuration approves every command (approvals.mode: off, or HERMES_YOLO_MODE in its .env)"
        raise RefusedCall("approvals_unavailable", message)
    if call.cwd and call.cwd != lease.cwd:
        where = "where the operator's server works" if lease.cwd is None else lease.cwd
        raise _unsupported(f"a working directory of its own (all of its runs work in one: {where})")
    for given, what in (
        (call.toolsets, "a choice of tool sets"),
        (call.max_turns, "a turn limit"),
        (call.env, "an environment of its own"),
    ):
        if given:
            raise _unsupported(what)
    if (call.model or call.provider) and not lease.abilities.chooses_models and not await _is_route(lease, call):
        raise _unsupported("a choice of model or provider (this version has none for a run)")


def _unsupported(what: str) -> RefusedCall:
    return RefusedCall("unsupported_option", f"a run at Hermes' API server cannot have {what}: use HERMES_MODE=bridge")


async def _is_route(lease: Lease, call: Call) -> bool:
    """An older server takes the names that its configuration has routes for, and ignores all others in silence."""
    if call.provider:
        return False
    models = (await _get(lease, "/v1/models")).get("data")
    names = [model.get("id") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return call.model in names


async def _session(lease: Lease, session_id: str) -> Mapping[str, Any]:
    """The server would begin a new session under an id that it does not know."""
    session = (await _get(lease, session_path(session_id))).get("session")
    return session if isinstance(session, dict) else {}


def session_path(session_id: str) -> str:
    return f"/api/sessions/{quote(session_id, safe='')}"


async def _remind(lease: Lease, session_id: str, body: dict[str, Any]) -> list[Item]:
    """An older server does not look up what was said before: it has to be told."""
    found = await _get(lease, f"{session_path(session_id)}/messages")
    messages = found.get("data")
    history, left_out = history_of(messages if isinstance(messages, list) else [])
    body |= {"conversation_history": history, "session_id": found.get("session_id") or session_id}
    if not left_out:
        return []
    message = f"this Hermes can be reminded of what was said, not of what tools gave: {left_out} messages are left out"
    return [warning("history_without_tools", message)]


def history_of(messages: Sequence[Any]) -> tuple[list[dict[str, str]], int]:
    """The texts of people and model, each speaker's in a row as one; and how many messages are none."""
    history: list[dict[str, str]] = []
    left_out = 0
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant") or not isinstance(content, str):
            left_out += 1
        elif history and history[-1]["role"] == role:
            history[-1]["content"] += f"\n\n{content}"
        elif content.strip():
            history.append({"role": role, "content": content})
    return history, left_out


async def _get(lease: Lease, path: str) -> dict[str, Any]:
    try:
        return _answer(await lease.client.get(path), lease)
    except httpx.TransportError as error:
        raise _not_started(lease, error) from error


async def _post(lease: Lease, body: dict[str, Any]) -> str:
    # Escaped: what is no whole character in JSON as it is would not get through.
    content = json.dumps(body).encode()
    try:
        answer = await lease.client.post("/v1/runs", content=content, headers={"Content-Type": "application/json"})
    except httpx.TransportError as error:
        raise _not_started(lease, error) from error
    run_id = _answer(answer, lease).get("run_id")
    if not isinstance(run_id, str) or not run_id:
        raise Unavailable(f"at {lease.url} is no API server of Hermes (it names no run)")
    return run_id


async def _session_of(lease: Lease, run_id: str) -> str | None:
    try:
        status = (await lease.client.get(f"/v1/runs/{run_id}")).json()
    except (httpx.HTTPError, ValueError):
        return None
    session_id = status.get("session_id") if isinstance(status, dict) else None
    return session_id if isinstance(session_id, str) else None


def _not_started(lease: Lease, error: Exception) -> NotStarted:
    what = str(error) or type(error).__name__
    return NotStarted(f"Hermes' API server at {lease.url} does not answer: {what}", missing=False)


def _answer(answer: httpx.Response, lease: Lease) -> dict[str, Any]:
    """The body of a success; else what the server says, as the error that it is."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    body = body if isinstance(body, dict) else {}
    if answer.is_success:
        return body
    told = body.get("error")
    error: Mapping[str, Any] = told if isinstance(told, dict) else {}
    said = str(error.get("message") or answer.text)[:_SAID_MAX]
    raise _refusal(answer.status_code, str(error.get("code") or ""), said, lease)


def _refusal(status: int, code: str, said: str, lease: Lease) -> Exception:
    where = f"Hermes' API server at {lease.url}"
    if code == "session_not_found":
        return RefusedCall("hermes_session_not_found", said)
    if status == 413:
        return RefusedCall("prompt_too_long", f"{where} finds the prompt, with what was said before, too long: {said}")
    if status in (401, 403):
        return Unavailable(f"{where} refuses the key: set HERMES_API_KEY to its API_SERVER_KEY")
    if status in (404, 405):
        return Unavailable(f"{where} has no such runs: {said}")
    if status == 429 or status >= 500:
        return NotStarted(f"{where} takes no run now ({status}): {said}", missing=False)
    return RefusedCall("invalid_request", f"{where} refuses the run ({status}): {said}")
