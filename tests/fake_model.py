"""A model server for the tests: OpenAI-compatible chat completions over SSE, on 127.0.0.1, in this process.

The last capital word of the newest user message picks a scenario: ``PLAIN``, ``TOOL`` (a tool round, then an answer),
``SLEEPTOOL`` (a tool that takes 60 s), ``SLOW`` (an answer of 40 words, four a second), ``ERR401``, ``EMPTY``.
Everything that is sent is noted with its time (``time.monotonic``), so that a test can compare what viewers saw, and
when, with what the model said.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakeModel", "Reply"]

_SCENARIOS = ("SLEEPTOOL", "PLAIN", "TOOL", "SLOW", "ERR401", "EMPTY")
PLAIN = "Hello there! This is a plain answer\nmade of about twenty small tokens: “quoted”, 漢字, 😀 among them. End."
BEFORE_TOOL = "Let me run a command first. "
AFTER_TOOL = "The command ran and printed what I expected.\nThat is the whole answer."
SLOW = " ".join(f"w{i:02d}" for i in range(40))
_PACE = {"SLOW": 0.25}


@dataclass
class Reply:
    """One answer of the model: the text that was sent so far, piece by piece, with times."""

    scenario: str
    pieces: list[tuple[float, str]] = field(default_factory=list)
    done: float | None = None

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)


class FakeModel:
    """Serves while inside ``with``. ``replies`` are the streamed answers in the order of their requests."""

    def __init__(self, pace: float = 0.06) -> None:
        self.pace = pace
        self.replies: list[Reply] = []
        self.prompts: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _answering(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="fake model", daemon=True)

    def __enter__(self) -> FakeModel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def config(self) -> str:
        """Hermes' ``config.yaml`` for this server. Without ``context_length`` Hermes asks the server for it first."""
        return (
            f"model: {{default: fake-model, provider: custom, base_url: {self.url}, api_key: sk-dummy,"
            " context_length: 200000}\n"
            "display: {show_reasoning: false, final_response_markdown: raw}\n"
            "security: {tirith_enabled: false, allow_lazy_installs: false}\n"
            "approvals: {timeout: 3}\n"
            "clarify: {timeout: 3}\n"
        )


def _pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _tool_call(command: str) -> list[dict[str, Any]]:
    arguments = json.dumps({"command": command})
    function = {"name": "terminal", "arguments": ""}
    deltas = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
    deltas += [{"index": 0, "function": {"arguments": arguments[i : i + 9]}} for i in range(0, len(arguments), 9)]
    return [{"tool_calls": [delta]} for delta in deltas]


def _plan(scenario: str, answered: bool) -> tuple[list[dict[str, Any]], str]:
    """The deltas of one model call and its finish reason. ``answered``: the tool's result is there already."""
    words = [{"content": piece} for piece in _pieces(SLOW if scenario == "SLOW" else PLAIN)]
    if scenario == "EMPTY":
        return [], "stop"
    if scenario in ("TOOL", "SLEEPTOOL"):
        if answered:
            return [{"content": piece} for piece in _pieces(AFTER_TOOL)], "stop"
        command = "echo tool-output" if scenario == "TOOL" else "sleep 60"
        return [{"content": piece} for piece in _pieces(BEFORE_TOOL)] + _tool_call(command), "tool_calls"
    return words, "stop"


def _answering(model: FakeModel) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            about = {"id": "fake-model", "object": "model", "created": 1, "owned_by": "tests"}
            self._json(200, {"object": "list", "data": [{**about, "context_length": 200_000}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            messages = body.get("messages") or []
            if not body.get("stream") and not body.get("tools"):  # a title for the session
                return self._json(200, _completion("A title"))
            last = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=0)
            prompt = _text_of(messages[last].get("content")) if messages else ""
            found = re.findall("|".join(rf"\b{name}\b" for name in _SCENARIOS), prompt)
            scenario = found[-1] if found else "PLAIN"
            answered = any(m.get("role") == "tool" for m in messages[last:])
            model.prompts.append(prompt)
            if scenario == "ERR401":
                return self._json(401, {"error": {"message": "this key is not known", "code": "invalid_api_key"}})
            if not body.get("stream"):
                return self._json(200, _completion("".join(d.get("content", "") for d in _plan(scenario, answered)[0])))
            self._stream(scenario, answered)

        def _stream(self, scenario: str, answered: bool) -> None:
            deltas, finish = _plan(scenario, answered)
            reply = Reply(scenario)
            model.replies.append(reply)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                for chunk in self._chunks(deltas, finish, reply, _PACE.get(scenario, model.pace)):
                    self.wfile.write(b"data: " + chunk + b"\n\n")
                    self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                return  # Hermes was stopped
            reply.done = time.monotonic()

        def _chunks(self, deltas: list[dict[str, Any]], finish: str, reply: Reply, pace: float) -> Iterator[bytes]:
            yield _chunk({"role": "assistant", "content": ""})
            for delta in deltas:
                time.sleep(pace)
                if "content" in delta:
                    reply.pieces.append((time.monotonic(), delta["content"]))
                yield _chunk(delta)
            yield _chunk({}, finish)
            # No output tokens: Hermes then believes that the answer is empty after two requests instead of four.
            yield _chunk(None, usage=_USAGE if deltas else {**_USAGE, "completion_tokens": 0, "total_tokens": 1_000})
            yield b"[DONE]"

        def _json(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Answer


_USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 40,
    "total_tokens": 1_040,
    "prompt_tokens_details": {"cached_tokens": 100},
}


def _chunk(delta: dict[str, Any] | None, finish: str | None = None, usage: dict[str, Any] | None = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-model"}
    return json.dumps({**head, "choices": choices, **({"usage": usage} if usage else {})}).encode()


def _completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": "fake-model"}
    return {**head, "choices": [choice], "usage": _USAGE}
