"""Stands in for Hermes' agent: does what the words of its prompt say, through the callbacks that it was given.

``STAND_IN_LACKS`` in the environment names callbacks that this build does not have.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from tools import terminal_tool

_CALLBACKS = (
    *("stream_delta_callback", "reasoning_callback", "tool_gen_callback", "tool_start_callback"),
    *("tool_complete_callback", "tool_progress_callback", "status_callback", "interim_assistant_callback"),
    *("clarify_callback", "step_callback", "event_callback", "notice_callback"),
)
_LACKS = os.environ.get("STAND_IN_LACKS", "").split(",")


class AIAgent:
    def __init__(self, **options: Any) -> None:
        self.session_id, self.model, self.provider = options["session_id"], options["model"], "stand-in"
        self.options = options
        self.stop = threading.Event()
        self.session_prompt_tokens = self.session_output_tokens = self.session_cache_read_tokens = 0
        self.session_estimated_cost_usd, self.session_cost_status = 0.0, "unknown"
        self.context_compressor = SimpleNamespace(_previous_summary=None)
        self.said = ""
        self.calls = 0
        for name in _CALLBACKS:
            setattr(self, name, None)

    def interrupt(self, message: str | None = None) -> None:
        self.stop.set()

    def run_conversation(self, user_message: str, conversation_history: Any = None) -> dict[str, Any]:
        result: dict[str, Any] = {"completed": True, "failed": False, "interrupted": False}
        words = user_message.split()
        for word in words:
            name, _, argument = word.partition(":")
            action = getattr(self, f"do_{name}", None)
            if action is not None:
                result.update(action(argument) or {})
            if self.stop.is_set():
                result.update(completed=False, interrupted=True)
                break
        return {"final_response": self.said.strip(), **result}

    # Words.

    def do_say(self, text: str) -> None:
        self.said += text
        self.stream_delta_callback(text)

    def do_long(self, size: str) -> None:
        self.do_say("x" * int(size))

    def do_echo(self, _: str) -> None:
        """What it was called with, as text: the options, and how the environment stood when Hermes was imported."""
        options = {k: v for k, v in self.options.items() if isinstance(v, (str, int, list, type(None)))}
        env = {k: os.environ.get(k) for k in ("HERMES_YOLO_MODE", "HERMES_SESSION_SOURCE", "HERMES_INTERACTIVE")}
        self.do_say(json.dumps({**options, **env, "cwd": os.getcwd(), "yolo": terminal_tool.YOLO}).replace(" ", ""))

    def do_reason(self, text: str) -> None:
        self.reasoning_callback(text)

    def do_stray(self, text: str) -> None:
        """Output of Hermes, of its tools, and a tool that reads."""
        print(text)
        subprocess.run(["sh", "-c", f"echo {text}; cat"], check=True)
        sys.stdin.read()

    def do_tool(self, name: str) -> None:
        self.calls += 1
        self.session_prompt_tokens += 100
        self.session_output_tokens += 10
        call_id = f"call_{self.calls}"
        self.tool_start_callback(call_id, name, {"n": self.calls})
        self.tool_progress_callback("tool.completed", name, None, None, duration=0.25, is_error=name == "bad")
        self.tool_complete_callback(call_id, name, {"n": self.calls}, '{"exit_code": 3}')
        self.stream_delta_callback(None)
        self.said = ""

    def do_odd(self, _: str) -> None:
        """Arguments that JSON cannot carry."""
        args: dict[Any, Any] = {("a", "b"): 1, "set": {1}}
        self.tool_start_callback("call_odd", "odd", args)
        args["self"] = args
        self.tool_start_callback("call_odder", "odd", args)

    def do_interim(self, text: str) -> None:
        self.interim_assistant_callback(text, already_streamed=False)
        self.interim_assistant_callback("streamed", already_streamed=True)

    def do_status(self, text: str) -> None:
        self.status_callback("lifecycle", text)

    def do_cost(self, amount: str) -> None:
        self.session_estimated_cost_usd, self.session_cost_status = float(amount), "estimated"
        self.step_callback(1, [])

    def do_compress(self, summary: str) -> None:
        self.context_compressor._previous_summary = summary
        old, self.session_id = self.session_id, "rotated"
        told = {"session_id": self.session_id, "old_session_id": old, "in_place": False}
        self.event_callback("session:compress", told)

    def do_approve(self, command: str) -> None:
        self.do_say(f"{terminal_tool.guard(command)};")

    def do_approve_twice(self, _: str) -> None:
        """Two tools at once, each in a thread of its own that got the callbacks of this one."""
        callback, answers = terminal_tool.get_approval_callback(), {}

        def run(name: str) -> None:
            terminal_tool.set_approval_callback(callback)
            answers[name] = terminal_tool.guard(name)

        threads = [threading.Thread(target=run, args=(name,)) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.do_say(f"{answers['first']},{answers['second']}")

    def do_clarify(self, question: str) -> None:
        self.do_say(f"{self.clarify_callback(question, ['red', 'blue'])};")

    def do_clarify_new(self, _: str) -> None:
        asked = [
            {"qid": "q0", "question": "Which?", "choices": ["a (Recommended)", "b"], "choices_offered": ["a", "b"]},
            {"qid": "q1", "question": "Why?", "choices": None, "choices_offered": None},
        ]
        self.do_say(json.dumps(self.clarify_callback(asked)).replace(" ", ""))

    def do_wait(self, _: str) -> None:
        self.stop.wait()

    def do_hang(self, _: str) -> None:
        while True:
            time.sleep(0.05)

    def do_child(self, _: str) -> None:
        """A tool in a session of its own, deaf to SIGTERM."""
        subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], start_new_session=True)

    def do_die(self, signal: str) -> None:
        os.kill(os.getpid(), int(signal))

    def do_raise(self, message: str) -> None:
        raise RuntimeError(message)

    def do_fail(self, error: str) -> dict[str, Any]:
        return {"failed": True, "completed": False, "final_response": f"It failed: {error}", "error": error}


_parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)] + [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _CALLBACKS if name not in _LACKS
]
AIAgent.__init__.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]
if "run_conversation" in _LACKS:
    del AIAgent.run_conversation
