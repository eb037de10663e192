"""Which Python a program that pip, pipx or uv installed is run by. Reads the program's first lines only.

A shell script that calls another program in the end (``exec /path/hermes "$@"``, as installers and distributions write
them) stands for that one. What it does before (``export HERMES_HOME=…``, ``unset PYTHONPATH``) is done for its Python,
too: otherwise another Hermes would be driven than the one that people run.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

from workers.hermes.command import Unavailable
from workers.hermes.process import NotStarted

__all__ = ["interpreter"]

_HEAD = 4096
_LONG = re.compile(r"""^'''exec' (?P<path>"[^"]+"|\S+) "\$0" "\$@"$""", re.MULTILINE)
"""Where a path is too long for ``#!``, or has spaces, pip writes a shell script of two lines."""
_WRAPPER = re.compile(
    r"""^\s*exec\s+(?:-a\s+\S+\s+)?(?P<path>"/[^"$]+"|'/[^']+'|/[^\s"'$]+)(?P<rest>.*)"\$@"\s*$""", re.MULTILINE
)
_WRAPPERS_MAX = 5
_STARTS_ONLY = re.compile(r"""(\s+-[A-Za-ln-z]+)*(\s+(-m\s+\S+|"[^"]+"|'[^']+'|[^\s"'-]\S*))?\s*""")
"""Python's own options, and what it runs; nothing for the program."""


def interpreter(program: str, environ: Mapping[str, str]) -> list[str]:
    """The command that runs the Python behind ``program`` (looked up on PATH unless it is a path): append arguments.

    It is the Python's path; where a shell script stands ahead of it, a shell that does first what that script does.

    Raises ``NotStarted(missing=True)`` where there is no such program, ``Unavailable`` where it is no Python script.
    """
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None:
        raise NotStarted(f"{program!r} could not be started: there is no such program", missing=True)
    python = _named_in(path, environ, _WRAPPERS_MAX)
    if python is None or not os.access(python[-1], os.X_OK):
        raise Unavailable(f"the Python of {path} cannot be told: its first lines name none. HERMES_PYTHON can")
    return python


def _named_in(path: str, environ: Mapping[str, str], deeper: int) -> list[str] | None:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return None
    first = head.partition("\n")[0]
    if not first.startswith("#!"):
        return None
    if found := _LONG.search(head):
        return [found["path"].strip('"')]
    words = first[2:].split()
    if not words:
        return None
    if (found := _WRAPPER.search(head)) and _is_shell(words) and deeper:
        behind = _wrapped(found["path"].strip("\"'"), found["rest"], environ, deeper - 1)
        return behind and [*_before(words, head[: found.start()], path), *behind]
    if os.path.basename(words[0]) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        python = shutil.which(named[0], path=environ.get("PATH")) if named and _is_python(named[0]) else None
        return [python] if python else None
    return [words[0]] if _is_python(words[0]) else None


def _wrapped(program: str, rest: str, environ: Mapping[str, str], deeper: int) -> list[str] | None:
    """``None``, too, where the script gives the program arguments of its own: a profile, say, which would be lost."""
    if _is_python(program):
        return [program] if _STARTS_ONLY.fullmatch(rest) else None
    return None if rest.strip() else _named_in(program, environ, deeper)


def _before(shell: list[str], text: str, path: str) -> list[str]:
    """A command that does what stands ahead of a script's last line, and then runs the command behind it."""
    lines = [line.strip() for line in text.splitlines()]
    if all(not line or line.startswith("#") for line in lines):
        return []
    return [*shell, "-c", f'{text}\nexec "$@"\n', path]


def _is_python(path: str) -> bool:
    return "python" in os.path.basename(path)


def _is_shell(words: list[str]) -> bool:
    return any(os.path.basename(word) in ("sh", "bash", "dash", "zsh") for word in words)
