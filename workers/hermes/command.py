"""A request → Hermes' argument vector and environment. Pure.

No shell is involved anywhere: every value is one argument, in the form ``--name=value``, so that a value which begins
with ``-`` is never taken for a flag.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import markup
from rich.errors import MarkupError

__all__ = ["ARGUMENT_MAX", "COLUMNS", "MARK", "MODES", "Call", "RefusedCall", "Unavailable", "arguments", "environment"]

ARGUMENT_MAX = 128 * 1024
"""Linux' MAX_ARG_STRLEN: bytes of one argument, its closing NUL included."""
MARK = "RUNCAST_HERMES_MARK"
"""Environment variable by which the processes of one Hermes call are found if their supervisor was killed."""
COLUMNS = 2_000
"""Width of the screen in mode ``text``. 0.19.0 breaks longer lines, and a break cannot be told from the model's; but
the agent's tools see the width too, and some print rules that fill it, which the model then has to read."""
_OURS = ("RUNCAST_", "LLM_")
_OUR_KEYS = frozenset({"HERMES_API_KEY"})
_ROOT = Path(__file__).resolve().parents[2]
_FORMAT = {"stream-json": ("--format=stream-json",), "text": (), "quiet": ("-Q",)}
MODES = tuple(_FORMAT)
"""The modes that are a command whose output is read."""
_SCREEN = {"COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm", "NO_COLOR": "1"}
"""Rich takes a dumb terminal for 80 columns wide, whatever COLUMNS says."""
_COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Where set, Rich writes escape sequences into a pipe."""


class RefusedCall(ValueError):
    """The request cannot be passed to Hermes as it is. ``code`` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unavailable(Exception):
    """This Hermes does not have the mode. The message says why, in words for whoever set the mode."""


@dataclass(frozen=True, slots=True)
class Call:
    """One Hermes call: what differs from run to run."""

    prompt: str
    model: str | None = None
    provider: str | None = None
    toolsets: Sequence[str] = ()
    max_turns: int | None = None
    resume: str | None = None
    """Hermes' own id of the session to go on with."""
    yolo: bool = True
    """Dangerous commands are approved without asking."""
    cwd: str | None = None
    """Hermes' working directory; ``None``: the worker's."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Merged over the inherited environment."""


def arguments(binary: str, call: Call, *, mode: str = "stream-json", stream_args: str = "") -> list[str]:
    """The argument vector. ``stream_args`` (shell words) are for the modes that stream, not for ``quiet``.

    Raises ``RefusedCall`` where a value has a NUL, is no valid Unicode, or is too long for one argument, and where
    Hermes cannot show the prompt in mode ``text``.
    """
    options = [
        ("--model", call.model),
        ("--provider", call.provider),
        ("--toolsets", ",".join(call.toolsets) or None),
        ("--resume", call.resume),
        ("--max-turns", None if call.max_turns is None else str(call.max_turns)),
    ]
    argv = [binary, "chat", f"--query={call.prompt}", *_FORMAT[mode]]
    argv += ["--source=tool", *(["--yolo"] if call.yolo else [])]
    argv += [f"{name}={value}" for name, value in options if value is not None]
    argv += [] if mode == "quiet" else shlex.split(stream_args)
    for argument in argv:
        _check(argument)
    if mode == "text":
        _check_echo(call.prompt)
    return argv


def _check(argument: str) -> None:
    if "\0" in argument:
        raise RefusedCall("invalid_prompt", "the prompt or an option has a NUL character, which no argument can carry")
    try:
        size = len(argument.encode()) + 1
    except UnicodeEncodeError as error:
        raise RefusedCall("invalid_prompt", f"the prompt or an option is no valid Unicode: {error}") from error
    if size > ARGUMENT_MAX:
        allowed = ARGUMENT_MAX - len("--query=") - 1
        message = (
            f"{size:,} bytes are too many for one argument of a command: a prompt may have {allowed:,}."
            " Mode bridge takes longer ones"
        )
        raise RefusedCall("prompt_too_long", message)


def _hide_runcast(passed: dict[str, str]) -> None:
    """Both projects have a package ``gateway``: a ``PYTHONPATH`` that leads to ours would break Hermes."""
    entries = passed.pop("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in entries if entry and Path(entry).resolve() != _ROOT]
    if kept:
        passed["PYTHONPATH"] = os.pathsep.join(kept)


def _check_echo(prompt: str) -> None:
    """In mode ``text`` Hermes prints the prompt first, as Rich markup: a closing tag without its opening kills it."""
    try:
        markup.render(f"[bold blue]Query:[/] {prompt}")
    except MarkupError as error:
        message = f"Hermes cannot print this prompt in mode text: {error}. The other modes take it"
        raise RefusedCall("invalid_prompt", message) from error


def environment(
    inherited: Mapping[str, str], mark: str, *, mode: str = "", extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The child's environment: the worker's without what is Runcast's (the agent's tools could read its passwords).

    ``extra`` is merged over it; ``mode`` adds what the reader of that mode's output relies on.
    """
    passed = {n: v for n, v in inherited.items() if not n.startswith(_OURS) and n not in _OUR_KEYS}
    _hide_runcast(passed)
    # The library of the worker's Python is none for Hermes'.
    passed.pop("PYTHONHOME", None)
    # Hermes writes JSON with the characters as they are: without this a worker in a Latin-1 locale gets Latin-1, and
    # one lone surrogate would end the stream. Its arguments are UTF-8 in any locale, too.
    passed |= {"PYTHONIOENCODING": "utf-8:replace", "PYTHONUTF8": "1"}
    # The first run otherwise installs a package.
    passed.setdefault("HERMES_DISABLE_LAZY_INSTALLS", "1")
    if mode in _FORMAT:
        # Its notices are known by their English words.
        passed["HERMES_LANGUAGE"] = "en"
    if mode == "text":
        passed = {name: value for name, value in passed.items() if name not in _COLOURS} | _SCREEN
    return {**passed, **(extra or {}), MARK: mark}
