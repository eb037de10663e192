"""A model server for the tests: OpenAI-compatible chat completions over SSE, on 127.0.0.1, in this process.

The last capital word of the newest user message picks a scenario:

| word | what the model does |
|---|---|
| ``PLAIN`` | answers in two lines |
| ``REASON`` | reasons, then answers |
| ``TOOL`` | one tool round, then an answer |
| ``MANYTOOLS`` | a round with three calls, one of which fails, then an answer |
| ``SLEEPTOOL`` | a tool that takes 60 s |
| ``RATED`` | a short answer, and behind it what the model thinks of it, as JSON |
| ``LONG`` | an answer of 24 lines, fast |
| ``SLOW`` | an answer of 40 words, four a second |
| ``STALL`` | a line and a few words, then nothing more for two minutes, or until nobody listens any more |
| ``MUTE`` | not even that |
| ``ENDLESS`` | a line a second for two minutes |
| ``DANGER path`` | a command that removes ``path`` with all it holds, then an answer |
| ``TWODANGERS path`` | two such commands in one round: ``path/1`` and ``path/2`` |
| ``COPY from to`` | a command that copies a file, and Hermes' own tool that writes ``written.txt``; then an answer |
| ``DELEGATE`` | gives the rest of the message to a subagent, then answers |
| ``COMPRESS`` | six rounds of a tool, of which the last says that the context is nearly full; then an answer |
| ``ASK`` | asks which colour, then answers |
| ``ERR401``, ``ERR429``, ``ERR500`` | the HTTP error |
| ``CUT`` | the first answer breaks off in the middle of the stream; the next is whole |
| ``EMPTY`` | nothing |

Everything that is sent is noted with its time (``time.monotonic``), so that a test can compare what viewers saw, and
when, with what the model said.
"""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakeModel", "Reply"]

_SCENARIOS = (
    *("SLEEPTOOL", "MANYTOOLS", "TOOL", "PLAIN", "REASON", "LONG", "SLOW", "TWODANGERS", "DANGER", "ASK"),
    *("COPY", "DELEGATE", "COMPRESS", "STALL", "MUTE", "ENDLESS", "RATED"),
    *("ERR401", "ERR429", "ERR500", "CUT", "EMPTY"),
)
PLAIN = "Hello there! This is a plain answer\nmade of about twenty small tokens: “quoted”, 漢字, 😀 among them. End."
THOUGHTS = "First I think about the question, then about the answer. "
BEFORE_TOOL = "Let me run a command first. "
AFTER_TOOL = "The command ran and printed what I expected.\nThat is the whole answer."
SLOW = " ".join(f"w{i:02d}" for i in range(40))
LONG = "\n".join(f"Line {i}: some words to fill it." for i in range(24))
CUT = "This answer will break off in the "
RATED = 'It is safe to do.\n\n```json\n{"confidence": "35%", "riskLevel": "Medium", "flag_for_review": false}\n```'
STALL = "This is a whole line of it.\nAnd this is "
ENDLESS = "".join(f"Line {i}.\n" for i in range(120))
_HELD = 120.0
"""Seconds for which a request is held that is not answered."""
_PACE = {"SLOW": 0.25, "LONG": 0.01, "COMPRESS": 0.01, "ENDLESS": 0.5}
_SAID = {"SLOW": SLOW, "LONG": LONG, "STALL": STALL, "ENDLESS": ENDLESS, "RATED": RATED}
_SUMMARY = "CONTEXT COMPACTION"
"""How Hermes marks what stands for the messages that it compressed away."""
_ERRORS = {
    "ERR401": (401, {"message": "this key is not known", "code": "invalid_api_key"}),
    "ERR429": (429, {"message": "too many requests for now", "code": "rate_limit_exceeded"}),
    "ERR500": (500, {"message": "the model has a fault", "type": "server_error"}),
}
_TOOLED = {"COPY", "TOOL", "SLEEPTOOL", "MANYTOOLS", "DANGER", "TWODANGERS", "ASK", "DELEGATE", "COMPRESS"}


@dataclass
class Reply:
    """One answer of the model: the text that was sent so far, piece by piece, with times."""

    scenario: str
    pieces: list[tuple[float, str]] = field(default_factory=list)
    done: float | None = None
    prompt: str = ""

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)


class FakeModel:
    """Serves while inside ``with``. ``replies`` are the streamed answers in the order of their requests."""

    def __init__(self, pace: float = 0.06) -> None:
        self.pace = pace
        self.replies: list[Reply] = []
        self.prompts: list[str] = []
        self.conversations: list[list[dict[str, Any]]] = []
        """The messages of each request."""
        self.told: dict[str, str] = {}
        """What it answers to a prompt that has this text in it, whatever its scenario."""
        self._cut: set[str] = set()
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
            # Newer builds otherwise try for minutes. What Hermes looks up about Python and pip for its prompt costs
            # more than a second of CPU a call, and this model reads no prompt.
            "agent: {api_max_retries: 2, auto_recovery_cycles: 0, environment_probe: false}\n"
        )

    def cuts(self, prompt: str) -> bool:
        """Whether this answer is to break off: the first of its prompt is."""
        known = prompt in self._cut
        self._cut.add(prompt)
        return not known


def _pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _calls(*calls: tuple[str, dict[str, Any]], before: int = 0) -> list[dict[str, Any]]:
    """Tool calls as a model streams them: the name, then the arguments in pieces. ``before``: calls made so far."""
    deltas: list[dict[str, Any]] = []
    for index, (name, asked) in enumerate(calls):
        arguments = json.dumps(asked)
        function = {"name": name, "arguments": ""}
        deltas.append({"index": index, "id": f"call_{before + index + 1}", "type": "function", "function": function})
        pieces = (arguments[i : i + 9] for i in range(0, len(arguments), 9))
        deltas += [{"index": index, "function": {"arguments": piece}} for piece in pieces]
    return [{"tool_calls": [delta]} for delta in deltas]


def _words(text: str) -> list[dict[str, Any]]:
    return [{"content": piece} for piece in _pieces(text)]


def _tool_calls(scenario: str, prompt: str, rounds: int) -> list[dict[str, Any]]:
    found = re.search(r"DANGERS? (\S+)", prompt)
    path = found[1] if found else "/nonexistent/of-the-tests"
    match scenario:
        case "TOOL":
            return _calls(("terminal", {"command": "echo tool-output"}))
        case "SLEEPTOOL":
            return _calls(("terminal", {"command": "sleep 60"}))
        case "MANYTOOLS":
            first, third = {"command": "echo many-a"}, {"command": "exit 3"}
            return _calls(("terminal", first), ("read_file", {"path": "/etc/hostname"}), ("terminal", third))
        case "DANGER":
            return _calls(("terminal", {"command": f"rm -rf {path}"}))
        case "COPY":
            source, target = re.search(r"COPY (\S+) (\S+)", prompt).groups()  # type: ignore[union-attr]
            copy = ("terminal", {"command": f"cp {source} {target}"})
            return _calls(copy, ("write_file", {"path": "written.txt", "content": "by its tool"}))
        case "DELEGATE":
            return _calls(("delegate_task", {"goal": prompt.replace("DELEGATE", "").strip(), "context": "none"}))
        case "COMPRESS":
            return _calls(("terminal", {"command": "seq 1000 1999"}), before=rounds)
        case "TWODANGERS":
            return _calls(*(("terminal", {"command": f"rm -rf {path}/{n}"}) for n in (1, 2)))
        case _:
            asked = {"question": "Which colour?", "choices": ["red", "blue"]}
            return _calls(("clarify", {**asked, "questions": [asked]}))  # as older and as newer builds want it


def _plan(scenario: str, answered: bool, prompt: str, rounds: int = 0) -> tuple[list[dict[str, Any]], str]:
    """The deltas of one model call and its finish reason. ``answered``: the tool's result is there already."""
    if scenario == "EMPTY":
        return [], "stop"
    if scenario in _TOOLED and answered:
        return _words(AFTER_TOOL), "stop"
    if scenario in _TOOLED:
        return _words(BEFORE_TOOL) + _tool_calls(scenario, prompt, rounds), "tool_calls"
    thoughts = [{"reasoning_content": piece} for piece in _pieces(THOUGHTS)] if scenario == "REASON" else []
    return thoughts + _words(_SAID.get(scenario, PLAIN)), "stop"


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
            rounds = sum(1 for m in messages[last:] if m.get("role") == "tool")
            answered = rounds > 0 if scenario != "COMPRESS" else _SUMMARY in json.dumps(messages)
            model.prompts.append(prompt)
            model.conversations.append(messages)
            if scenario == "MUTE":
                self.close_connection = True
                return self._hold()
            if scenario in _ERRORS:
                status, error = _ERRORS[scenario]
                return self._json(status, {"error": error})
            if not body.get("stream"):
                deltas = _plan(scenario, answered, prompt)[0]
                return self._json(200, _completion("".join(d.get("content", "") for d in deltas)))
            full = scenario == "COMPRESS" and rounds == 5 and not answered
            self._stream(scenario, answered, prompt, rounds, 190_000 if full else 1_000)

        def _stream(self, scenario: str, answered: bool, prompt: str, rounds: int, prompt_tokens: int) -> None:
            cut = scenario == "CUT" and model.cuts(prompt)
            deltas, finish = (_words(CUT), "stop") if cut else _plan(scenario, answered, prompt, rounds)
            told = next((answer for text, answer in model.told.items() if text in prompt), None)
            deltas, finish = (deltas, finish) if told is None else (_words(told), "stop")
            reply = Reply(scenario, prompt=prompt)
            model.replies.append(reply)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                pace = _PACE.get(scenario, model.pace)
                for chunk in self._chunks(deltas, finish, reply, pace, prompt_tokens, cut=cut):
                    self.wfile.write(b"data: " + chunk + b"\n\n")
                    self.wfile.flush()
                if cut:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
            except (BrokenPipeError, ConnectionResetError):
                return  # Hermes was stopped
            reply.done = time.monotonic()

        def _chunks(
            self, deltas: list[dict[str, Any]], finish: str, reply: Reply, pace: float, prompt_tokens: int, *, cut: bool
        ) -> Iterator[bytes]:
            yield _chunk({"role": "assistant", "content": ""})
            for delta in deltas:
                time.sleep(pace)
                if "content" in delta:
                    reply.pieces.append((time.monotonic(), delta["content"]))
                yield _chunk(delta)
            if reply.scenario == "STALL":
                self._hold()
            if cut:
                return
            yield _chunk({}, finish)
            # No output tokens: Hermes then believes that the answer is empty after two requests instead of four.
            usage = _USAGE if deltas else {**_USAGE, "completion_tokens": 0, "total_tokens": 1_000}
            yield _chunk(None, usage={**usage, "prompt_tokens": prompt_tokens})
            yield b"[DONE]"

        def _hold(self) -> None:
            """Return when whoever asked hangs up, or after two minutes."""
            end = time.monotonic() + _HELD
            while time.monotonic() < end:
                if select.select([self.connection], [], [], 1.0)[0]:
                    return

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
