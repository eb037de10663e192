"""A request → Hermes' argument vector and environment. Pure.

No shell is involved anywhere: every value is one argument, in the form ``--name=value``, so that a value which begins
with ``-`` is never taken for a flag.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["ARGUMENT_MAX", "MARK", "Call", "RefusedCall", "arguments", "environment"]

ARGUMENT_MAX = 128 * 1024
"""Linux' MAX_ARG_STRLEN: bytes of one argument, its closing NUL included."""
MARK = "RUNCAST_HERMES_MARK"
"""Environment variable by which the processes of one Hermes call are found if their supervisor was killed."""
_OURS = "RUNCAST_"


class RefusedCall(ValueError):
    """The request cannot be passed to Hermes as it is. ``code`` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


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


def arguments(binary: str, call: Call, *, stream_args: str = "", stream: bool = True) -> list[str]:
    """The argument vector. ``stream=False`` is the quiet contract (``-Q``): the answer as a whole, at the end.

    Raises ``RefusedCall`` where a value has a NUL, is no valid Unicode, or is too long for one argument.
    """
    options = [
        ("--model", call.model),
        ("--provider", call.provider),
        ("--toolsets", ",".join(call.toolsets) or None),
        ("--resume", call.resume),
        ("--max-turns", None if call.max_turns is None else str(call.max_turns)),
    ]
    argv = [binary, "chat", f"--query={call.prompt}"]
    argv += ["--format=stream-json"] if stream else ["-Q"]
    argv += ["--source=tool", *(["--yolo"] if call.yolo else [])]
    argv += [f"{name}={value}" for name, value in options if value is not None]
    argv += shlex.split(stream_args) if stream else []
    for argument in argv:
        _check(argument)
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
        message = f"{size:,} bytes are too many for one argument of a command: a prompt may have {allowed:,}"
        raise RefusedCall("prompt_too_long", message)


def environment(inherited: Mapping[str, str], mark: str) -> dict[str, str]:
    """The child's environment: the worker's without its ``RUNCAST_…`` (the agent's tools could read its passwords)."""
    passed = {name: value for name, value in inherited.items() if not name.startswith(_OURS)}
    # Hermes writes JSON with the characters as they are: without this a worker in a Latin-1 locale gets Latin-1, and
    # one lone surrogate would end the stream.
    passed.setdefault("PYTHONIOENCODING", "utf-8:replace")
    # The first run otherwise installs a package.
    passed.setdefault("HERMES_DISABLE_LAZY_INSTALLS", "1")
    passed[MARK] = mark
    return passed
