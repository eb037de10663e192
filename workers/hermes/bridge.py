"""Drives Hermes' agent through its callbacks, one call a process. Run by Hermes' own Python; standard library only.

``PYTHON bridge.py`` reads one ``call`` line from standard input, then ``answer`` and ``interrupt`` lines, and writes
what happens to standard output, one JSON object a line: docs/hermes-bridge.md. ``PYTHON bridge.py --handshake`` writes
``hello`` (or ``unavailable``) and ends.

The agent is built as ``hermes chat -Q`` builds it, by Hermes' own functions. Whatever Hermes and its tools print goes
to standard error, and they read nothing: the pipes of the protocol are moved away from descriptors 0 and 1 first. The
end of standard input says that nobody is left to read: the agent is interrupted, as by SIGTERM, and the process ends
``_GRACE`` seconds later at the latest. The main thread is Hermes'; another one reads.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

PROTOCOL = 1
_GRACE = 5.0
"""Seconds from the end of the input, or SIGTERM, to the end of this process, whatever Hermes does meanwhile."""
_ESSENTIAL = ("stream_delta_callback",)
_OPTIONAL = (
    *("reasoning_callback", "tool_gen_callback", "tool_start_callback", "tool_complete_callback"),
    *("tool_progress_callback", "status_callback", "interim_assistant_callback", "clarify_callback"),
    *("step_callback", "event_callback", "notice_callback"),
)
_CLI = ("_ensure_runtime_credentials", "_resolve_turn_agent_config", "_init_agent")
"""What is used of the class behind ``hermes chat``."""
_COUNTERS = {
    "prompt": "session_prompt_tokens",
    "input": "session_input_tokens",
    "output": "session_output_tokens",
    "cache_read": "session_cache_read_tokens",
    "cache_write": "session_cache_write_tokens",
    "reasoning": "session_reasoning_tokens",
    "cost": "session_estimated_cost_usd",
}
_RESULT = (
    *("final_response", "completed", "failed", "interrupted", "partial", "turn_exit_reason", "error"),
    *("failure_reason", "api_calls", "session_id", "model", "provider", "cost_status"),
)
_SUBAGENT = "subagent."
_SAID = 1_000
"""Characters of what Hermes printed that a refusal quotes."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UNSAID = (
    "[Nobody answered. Decide by your own judgment, or on the most reasonable assumption, and say which one it was.]"
)


class Unavailable(Exception):
    """This Hermes cannot be driven."""


class Refused(Exception):
    """The call cannot begin. ``code`` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Wire:
    """The protocol's two pipes. Lines are written whole, whichever threads write; a full pipe makes them wait."""

    def __init__(self) -> None:
        self.requests = os.fdopen(os.dup(0), "rb")
        self._events = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)
        self._lock = threading.Lock()

    def send(self, type_: str, /, **fields: Any) -> None:
        line = _encoded({"type": type_, **fields})
        # Nobody reads any more: the end of the requests says so too, and ends this process in order.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._events.write(line)
            self._events.flush()


def _encoded(record: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(record, default=str, skipkeys=True)
    except (TypeError, ValueError, RecursionError):  # arguments that hold themselves, say
        text = json.dumps({key: str(value) for key, value in record.items()})
    return text.encode() + b"\n"


class Printed(io.TextIOBase):
    """Takes the place of standard output and standard error: all of it goes to the latter, the last is remembered."""

    encoding = "utf-8"

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._last: collections.deque[str] = collections.deque(maxlen=60)

    def write(self, text: str) -> int:
        self._last.append(text)
        return self._file.write(text)

    def forget(self) -> None:
        self._last.clear()

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def writable(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """What was printed since ``forget``, without colours."""
        return _COLOUR.sub("", "".join(self._last)).strip()


class People:
    """Questions to people. Whoever asks waits for the answers; ``None`` where the call was interrupted meanwhile."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lock = threading.Lock()
        self._open: dict[str, concurrent.futures.Future[str | None]] = {}
        self._count = 0
        self._closed = False
        self.touch: Callable[[], object] = lambda: None
        """Tells Hermes that a wait is no standstill."""

    def ask(self, kind: str, asked: Iterable[dict[str, Any]]) -> list[str | None]:
        """All are asked before the first answer is waited for."""
        return [self._wait(key, future) for key, future in [self._put(kind, fields) for fields in asked]]

    def _put(self, kind: str, fields: dict[str, Any]) -> tuple[str, concurrent.futures.Future[str | None]]:
        future: concurrent.futures.Future[str | None] = concurrent.futures.Future()
        with self._lock:
            self._count += 1
            key = f"ask_{self._count}"
            self._open[key] = future
            closed = self._closed
        if closed:
            future.set_result(None)
        else:
            self._wire.send("ask", id=key, kind=kind, **fields)
        return key, future

    def _wait(self, key: str, future: concurrent.futures.Future[str | None]) -> str | None:
        try:
            while True:
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    return future.result(timeout=10)
                self.touch()
        finally:
            with self._lock:
                self._open.pop(key, None)

    def answer(self, key: str, answer: str) -> None:
        with self._lock:
            future = self._open.pop(key, None)
        if future is not None:
            future.set_result(answer)

    def close(self) -> None:
        """Nobody is asked any more, and whoever waits goes on without an answer."""
        with self._lock:
            waiting, self._closed = list(self._open.values()), True
            self._open.clear()
        for future in waiting:
            future.set_result(None)

    # What Hermes calls.

    def approve(self, command: str, description: str = "", *, allow_permanent: bool = True, **more: Any) -> str:
        choices = ["once", "session", "always", "deny"]
        if not allow_permanent:
            choices.remove("always")
        if more.get("smart_denied") or more.get("allow_session") is False:
            choices = ["once", "deny"]
        fields = {"payload": {"command": command, "description": description}, "choices": choices}
        (answer,) = self.ask("approval", [{**fields, "free": False, "otherwise": "deny"}])
        return answer if answer in choices else "deny"

    def clarify(self, asked: Any, choices: Iterable[str] | None = None, **_: Any) -> Any:
        """One question and its choices → the answer; or, of newer builds, several questions → their answers."""
        if isinstance(asked, str):
            (answer,) = self.ask("question", [_question(asked, choices)])
            return _UNSAID if answer is None else answer
        questions = [_question(q["question"], q.get("choices_offered"), q.get("multi_select")) for q in asked]
        answers = self.ask("question", questions)
        stopped = None in answers
        said = {question["qid"]: answers[i] for i, question in enumerate(asked)}
        return {"answers": said, "outcome": "cancelled" if stopped else "submitted"}


def _question(text: str, choices: Iterable[str] | None, several: bool | None = None) -> dict[str, Any]:
    payload: dict[str, Any] = {"question": text, **({"multi_select": True} if several else {})}
    return {"payload": payload, "choices": list(choices or ()), "free": True, "otherwise": _UNSAID}


class Report:
    """The agent's callbacks, each a line. They come from several threads; a subagent has none of them."""

    def __init__(self, wire: Wire, agent: Any, stop: Stop) -> None:
        self._send, self._agent, self._stop = wire.send, agent, stop
        self._base = _counters(agent)
        self._counted: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._ended: list[dict[str, Any]] = []
        """What is told of a tool's end ahead of its end: older builds tell it without the call's id."""
        self._lock = threading.Lock()

    def callbacks(self) -> dict[str, Callable[..., Any]]:
        return {
            "stream_delta_callback": self.text,
            "reasoning_callback": lambda text, *_, **__: text and self._send("reasoning", text=str(text)),
            "tool_gen_callback": lambda name, *_, **__: self._send("tool_generating", name=str(name)),
            "tool_start_callback": self.tool_started,
            "tool_complete_callback": self.tool_ended,
            "tool_progress_callback": self.progress,
            "status_callback": self.status,
            "notice_callback": lambda notice, *_, **__: self.status("notice", getattr(notice, "text", notice)),
            "interim_assistant_callback": self.interim,
            "step_callback": lambda *_, **__: self.look(),
            "event_callback": self.event,
        }

    def text(self, text: str | None = None, *_: Any, **__: Any) -> None:
        """``None`` and ``""`` mark an end and are no text."""
        if text:
            self._send("text", text=str(text))

    def interim(self, text: Any, *_: Any, already_streamed: bool = False, **__: Any) -> None:
        if text and not already_streamed:
            self._send("interim", text=str(text))

    def tool_started(self, call_id: Any, name: str, args: Any = None, *_: Any, **__: Any) -> None:
        self.look()
        self._send("tool_started", id=str(call_id or ""), name=name, args=args)

    def tool_ended(self, call_id: Any, name: str, args: Any = None, result: Any = None, *_: Any, **__: Any) -> None:
        told = self._take(str(call_id or ""), name)
        about = {"duration": told.get("duration"), "is_error": bool(told.get("is_error"))}
        self._send("tool_ended", id=str(call_id or ""), name=name, result=result, **about)

    def _take(self, call_id: str, name: str) -> dict[str, Any]:
        with self._lock:
            for told in self._ended:
                if told["name"] == name and told.get("tool_call_id") in (None, call_id):
                    self._ended.remove(told)
                    return told
        return {}

    def progress(self, event: str, name: Any = None, preview: Any = None, args: Any = None, **more: Any) -> None:
        if event == "tool.completed":
            with self._lock:
                self._ended.append({**more, "name": name})
        elif event.startswith(_SUBAGENT) and event != "subagent.thinking":  # a spinner's words
            self._send("subagent", event=event[len(_SUBAGENT) :], name=name, preview=preview, **_plain(more))
        elif event == "tool.output_risk":
            self._send("status", kind="warn", message=f"{name}: {preview or more}")

    def status(self, kind: Any, message: Any = "", *_: Any, **__: Any) -> None:
        self.look()
        self._send("status", kind=str(kind), message=str(message))

    def event(self, name: str, payload: Any = None, *_: Any, **__: Any) -> None:
        if name == "session:compress" and isinstance(payload, Mapping):
            self._send("compressed", summary=_summary(self._agent), **_plain(payload))
            self.look()

    def look(self) -> None:
        """Tell what changed of session, model and counts, and pass on a stop that came too early for Hermes."""
        told = {k: getattr(self._agent, k, None) for k in ("session_id", "model", "provider")}
        counted = {k: _less(v, self._base.get(k)) for k, v in _counters(self._agent).items()}
        with self._lock:
            new_told, self._told = told != self._told, told
            new_counted, self._counted = counted != self._counted and any(counted.values()), counted
        if new_told:
            self._send("session", **told)
        if new_counted:
            self._send("usage", **counted, cost_status=getattr(self._agent, "session_cost_status", None))
        if self._stop.requested.is_set():
            self._stop.pass_on()


def _counters(agent: Any) -> dict[str, Any]:
    found = {key: getattr(agent, name, None) for key, name in _COUNTERS.items()}
    return {key: value for key, value in found.items() if isinstance(value, (int, float))}


def _less(value: Any, base: Any) -> Any:
    return value - base if base else value


def _summary(agent: Any) -> str | None:
    """What stands for the messages that were compressed away: kept for the next time, or among those that stay."""
    compressor = getattr(agent, "context_compressor", None)
    kept = getattr(compressor, "_previous_summary", None)
    if isinstance(kept, str) and kept.strip():
        return kept
    bare = _maybe(compressor, "_strip_summary_prefix")
    read = _maybe(getattr(agent, "_session_db", None), "get_messages_as_conversation")
    for message in reversed(read(agent.session_id) or ()):
        said = message.get("content")
        summary = bare(said) if isinstance(said, str) else None
        if summary and summary != said.strip():
            return str(summary)
    return None


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    taken = ("type", "event", "name", "preview", "summary")
    return {str(k): v for k, v in fields.items() if k not in taken and isinstance(v, (str, int, float, type(None)))}


class Stop:
    """Interrupts the agent, from any thread and at any time, also before there is one."""

    def __init__(self, people: People) -> None:
        self.requested = threading.Event()
        self.agent: Any = None
        self._people = people

    def request(self) -> None:
        self.requested.set()
        self._people.close()
        self.pass_on()

    def pass_on(self) -> None:
        agent = self.agent
        if agent is not None and not getattr(agent, "_interrupt_requested", False):
            # The hard one also ends what an ordinary interrupt lets go on: a summary under way, say.
            with contextlib.suppress(Exception):
                getattr(agent, "hard_interrupt", agent.interrupt)()

    def leave(self) -> None:
        """Interrupt, and end the process in time. A signal handler starts it as a thread: Hermes' locks may be held."""
        threading.Thread(target=self.request, daemon=True).start()
        time.sleep(_GRACE)
        os._exit(128 + signal.SIGTERM)


class Hermes:
    """Hermes' modules, and the agent that they build."""

    def __init__(self) -> None:
        # As by `hermes chat`: this settles the profile, reads .env and the configuration.
        sys.argv = ["hermes", "chat"]
        try:
            self.main = importlib.import_module("hermes_cli.main")
            self.cli = importlib.import_module("cli")
            self.agent_class = importlib.import_module("run_agent").AIAgent
        except (Exception, SystemExit) as error:
            raise Unavailable(f"Hermes cannot be imported by {sys.executable}: {_words(error)}") from error
        self.context = _module_with("set_hermes_interactive_context", "tools.approval_context", "tools.approval")
        self.terminal = _module_with("set_approval_callback", "tools.terminal_tool")
        self._check()

    def _check(self) -> None:
        known = inspect.signature(self.agent_class.__init__).parameters
        self.callbacks = [name for name in (*_ESSENTIAL, *_OPTIONAL) if name in known]
        self.lacks = [name for name in _OPTIONAL if name not in known]
        missing = [name for name in _ESSENTIAL if name not in known]
        missing += [n for n in ("run_conversation", "interrupt") if not callable(getattr(self.agent_class, n, None))]
        cli = getattr(self.cli, "HermesCLI", None)
        missing += [f"HermesCLI.{name}" for name in _CLI if not callable(getattr(cli, name, None))]
        if missing:
            raise Unavailable(f"this Hermes ({_version()}) has no {', '.join(missing)}, which the bridge needs")

    @property
    def can_ask(self) -> bool:
        return self.context is not None and self.terminal is not None

    def hello(self) -> dict[str, Any]:
        about = {"hermes_version": _version(), "python": sys.executable, "pid": os.getpid()}
        return {**about, "callbacks": self.callbacks, "lacks": self.lacks, "approvals": self.can_ask}

    def build(self, call: Mapping[str, Any], people: People, printed: Printed) -> Any:
        """The ``HermesCLI`` of the call, its agent made. Raises ``Refused``."""
        self._prepare(call, printed)
        cli = self._command(call)
        cli.tool_progress_mode = "off"
        cli._single_query_mode = True  # one tool snapshot, so wait for MCP servers
        self._people(cli, call, people)
        if call.get("resume") and not self._resumable(cli):
            raise Refused("hermes_session_not_found", f"Hermes has no session {call['resume']!r}")
        printed.forget()
        claim = getattr(cli, "_claim_active_session", None)
        if claim is not None and not claim("cli"):
            raise Refused("hermes_session_busy", printed.text or "Hermes lets no further session begin now")
        if not cli._ensure_runtime_credentials() or not self._init_agent(cli, call):
            raise Refused("not_configured", printed.text or "Hermes could not make its agent")
        self._approvals(cli, call, people)
        return cli

    def _prepare(self, call: Mapping[str, Any], printed: Printed) -> None:
        """What ``hermes chat`` does before it makes its command object."""
        configured = getattr(self.main, "_has_any_provider_configured", None)
        if configured is not None and not configured():
            # Where its configuration cannot be read, Hermes goes on without, and has said so.
            about = printed.text[-_SAID:] if "config.yaml" in printed.text else ""
            message = f"no provider is configured in this Hermes home: run `hermes setup`. {about}"
            raise Refused("not_configured", message.strip())
        arguments = argparse.Namespace(
            command="chat", query=call["prompt"], toolsets=",".join(call.get("toolsets") or ()) or None
        )
        _maybe(self.main, "_prepare_agent_startup")(arguments)
        # There is no later turn for which a result could wait: what is delegated ends within this one.
        _maybe(_module("gateway.session_context"), "declare_stateless_channel")()

    def _command(self, call: Mapping[str, Any]) -> Any:
        resume = call.get("resume")
        if resume:
            resume = _maybe(self.main, "_resolve_session_by_name_or_id")(resume) or resume
        options = {"resume": resume, **{k: call.get(k) for k in ("model", "provider", "max_turns")}}
        make = getattr(self.cli, "_build_cli_from_args", None)
        if make is not None:
            return make(**_fill(make, {**options, "toolsets": list(call.get("toolsets") or ()) or None}))
        return self.cli.HermesCLI(**_only(self.cli.HermesCLI, {**options, "toolsets": self._toolsets(call)}))

    def _toolsets(self, call: Mapping[str, Any]) -> Any:
        if call.get("toolsets"):
            return list(call["toolsets"])
        config = self.cli.CLI_CONFIG
        coding = _maybe(_module("agent.coding_context"), "coding_selection")(platform="cli", config=config)
        chosen = _maybe(_module("hermes_cli.tools_config"), "_get_platform_tools")(config, "cli")
        return coding or (sorted(chosen) if chosen else None)

    def _people(self, cli: Any, call: Mapping[str, Any], people: People) -> None:
        """Hermes' own prompts need its terminal interface: ours take their places before Hermes installs them."""
        cli._approval_callback = people.approve if call["approvals"] == "ask" else _deny
        cli._clarify_callback = people.clarify
        for name in ("_sudo_password_callback", "_vault_unlock_callback", "_vault_code_callback"):
            setattr(cli, name, lambda *_, **__: "")
        cli._vault_save_login_callback = lambda *_, **__: None
        cli._secret_capture_callback = _skip_secret
        if call.get("cwd"):  # a resumed session would go back to where it began
            cli._restore_session_cwd = lambda *_, **__: None

    def _resumable(self, cli: Any) -> bool:
        store = getattr(cli, "_session_db", None) or importlib.import_module("hermes_state").SessionDB()
        return bool(store.get_session(cli.session_id))

    def _init_agent(self, cli: Any, call: Mapping[str, Any]) -> bool:
        route = cli._resolve_turn_agent_config(call["prompt"])
        options = {"model_override": route["model"], "runtime_override": route["runtime"]}
        options["request_overrides"] = route.get("request_overrides")
        return bool(cli._init_agent(**_only(cli._init_agent, options)))

    def _approvals(self, cli: Any, call: Mapping[str, Any], people: People) -> None:
        _maybe(self.context, "set_current_session_key")(cli.session_id)
        if self.terminal is not None:
            self.terminal.set_approval_callback(cli._approval_callback)
        if call["approvals"] != "ask":
            return
        if not self.can_ask:
            raise Refused("approvals_unavailable", "this Hermes lacks what it takes to ask before a tool runs")
        assert self.context is not None
        self.context.set_hermes_interactive_context(True)
        gate = _module("tools.approval")
        _maybe(gate, "disable_session_yolo")(cli.session_id)
        if _maybe(gate, "is_approval_bypass_active")():
            message = "Hermes' configuration approves every tool (approvals.mode: off, or HERMES_YOLO_MODE in its .env)"
            raise Refused("approvals_unavailable", message)


def _fill(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A value for every parameter: ``None`` for those that have no default and are not among ``options``."""
    known = inspect.signature(function).parameters
    return {n: options.get(n) for n, p in known.items() if n in options or p.default is inspect.Parameter.empty}


def _only(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}


def _module(name: str) -> Any:
    with contextlib.suppress(Exception):
        return importlib.import_module(name)
    return None


def _module_with(attribute: str, *names: str) -> Any:
    return next((m for m in map(_module, names) if callable(getattr(m, attribute, None))), None)


def _maybe(owner: Any, name: str) -> Callable[..., Any]:
    """A function that this Hermes may not have; one that does nothing otherwise."""
    found = getattr(owner, name, None)
    return found if callable(found) else lambda *_, **__: None


def _deny(*_: Any, **__: Any) -> str:
    """Under yolo Hermes asks only where it approves nothing by itself, and nobody is there to ask."""
    return "deny"


def _skip_secret(name: str = "", *_: Any, **__: Any) -> dict[str, Any]:
    return {"success": True, "skipped": True, "stored_as": name, "validated": False, "message": "nobody was asked"}


def _version() -> str:
    told = getattr(_module("hermes_cli"), "__version__", None)
    return str(told) if told else "of unknown version"


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _environment(call: Mapping[str, Any]) -> None:
    """Before Hermes is imported: it freezes some of it."""
    os.environ.update(HERMES_SESSION_SOURCE="tool", HERMES_SESSION_SOURCE_EXPLICIT="1", HERMES_INTERACTIVE="1")
    if call["approvals"] == "ask":
        for name in ("HERMES_YOLO_MODE", "HERMES_SINGLE_QUERY_SESSION", "HERMES_EXEC_ASK", "HERMES_GATEWAY_SESSION"):
            os.environ.pop(name, None)
    else:
        os.environ.update(HERMES_YOLO_MODE="1", HERMES_SINGLE_QUERY_SESSION="1")


class Bridge:
    """One call, from its line to its result."""

    def __init__(self, wire: Wire, printed: Printed) -> None:
        self._wire, self._printed = wire, printed
        self._people = People(wire)
        self._stop = Stop(self._people)

    def run(self) -> int:
        call = json.loads(self._wire.requests.readline() or b"{}")
        if call.get("type") != "call" or call.get("protocol") != PROTOCOL:
            raise Unavailable(f"the first line is no call of protocol {PROTOCOL}")
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: threading.Thread(target=self._stop.leave, daemon=True).start())
        _environment(call)
        hermes = Hermes()
        self._wire.send("hello", protocol=PROTOCOL, **hermes.hello())
        try:
            cli = hermes.build(call, self._people, self._printed)
        except Refused as refused:
            self._wire.send("failed", code=refused.code, message=str(refused))
            return 1
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            message = self._printed.text if isinstance(error, SystemExit) else ""
            self._wire.send("failed", code="not_configured", message=message or _words(error))
            return 1
        return self._converse(hermes, cli, call["prompt"])

    def _read(self) -> None:
        """Requests, until nobody is left to make any."""
        for line in self._wire.requests:
            with contextlib.suppress(ValueError, KeyError, AttributeError):  # of a newer worker, say
                self._obey(json.loads(line))
        self._stop.leave()

    def _obey(self, request: Mapping[str, Any]) -> None:
        if request["type"] == "answer":
            self._people.answer(request["id"], str(request["answer"]))
        elif request["type"] == "interrupt":
            self._stop.request()

    def _converse(self, hermes: Hermes, cli: Any, prompt: str) -> int:
        agent = cli.agent
        agent.quiet_mode = agent.suppress_status_output = True
        report = Report(self._wire, agent, self._stop)
        for name, callback in report.callbacks().items():
            if name in hermes.callbacks:
                setattr(agent, name, callback)
        agent.clarify_callback = self._people.clarify
        self._people.touch = lambda: _maybe(agent, "_touch_activity")("waiting for a person")
        self._stop.agent = agent
        report.look()
        try:
            result = {"interrupted": True} if self._stop.requested.is_set() else _turns(cli, prompt)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            result = {"failed": True, "error": _words(error)}
        report.look()
        told = {name: result[name] for name in _RESULT if name in result}
        self._wire.send("result", **{"session_id": getattr(agent, "session_id", None), **told})
        self._finish(hermes, cli)
        return 0

    def _finish(self, hermes: Hermes, cli: Any) -> None:
        """Session, memory, background processes: as Hermes ends a single query."""
        with contextlib.suppress(Exception, SystemExit):
            cli.session_id = getattr(cli.agent, "session_id", None) or cli.session_id
            _maybe(hermes.cli, "_finalize_single_query")(cli)


def _turns(cli: Any, prompt: str) -> dict[str, Any]:
    """The turn, and those that follow from what it left running and wanted to be told of."""
    agent = cli.agent
    result = _turn(agent, prompt, cli.conversation_history)
    quiet = _module("hermes_cli.quiet_single_query")
    follow = getattr(quiet, "continue_quiet_notify_completions", None)
    if follow is None or result.get("failed") or result.get("interrupted"):
        return result
    history = [result.get("messages") or cli.conversation_history]

    def turn(text: str) -> dict[str, Any]:
        following = _turn(agent, text, history[0])
        history[0] = following.get("messages") or history[0]
        return following

    options = {
        "owns_event": getattr(cli, "_owns_process_notification", None),
        "linger_budget": _maybe(quiet, "quiet_notify_linger_seconds")(),
    }
    cli._quiet_notify_linger_done = True
    followed = follow(agent.session_id, turn, **_only(follow, options))
    return followed if isinstance(followed, dict) else result


def _turn(agent: Any, text: str, history: Any) -> dict[str, Any]:
    result = agent.run_conversation(user_message=text, conversation_history=history)
    return result if isinstance(result, dict) else {"final_response": str(result), "completed": True}


def main(arguments: list[str]) -> int:
    wire, printed = Wire(), Printed(sys.stderr)
    sys.stdout = sys.stderr = printed
    # The directory of this file holds modules of ours whose names Hermes uses too.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    try:
        if "--handshake" in arguments:
            os.environ.setdefault("HERMES_YOLO_MODE", "1")
            wire.send("hello", protocol=PROTOCOL, **Hermes().hello())
            return 0
        return Bridge(wire, printed).run()
    except Unavailable as error:
        wire.send("unavailable", reason=str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
