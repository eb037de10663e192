"""Which Python a program that pip, pipx or uv installed is run by. Reads the program's first lines only.

A shell script that only calls another program (``exec /path/hermes "$@"``, as installers and distributions write them)
stands for that one.
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


def interpreter(program: str, environ: Mapping[str, str]) -> str:
    """The path of the Python behind ``program`` (looked up on PATH unless it is a path).

    Raises ``NotStarted(missing=True)`` where there is no such program, ``Unavailable`` where it is no Python script.
    """
    path = shutil.which(program, path=environ.get("PATH"))
    if path is None:
        raise NotStarted(f"{program!r} could not be started: there is no such program", missing=True)
    python = _named_in(path, environ, _WRAPPERS_MAX)
    if python is None or not os.access(python, os.X_OK):
        raise Unavailable(f"the Python of {path} cannot be told: its first line names none. HERMES_PYTHON can")
    return python


def _named_in(path: str, environ: Mapping[str, str], deeper: int) -> str | None:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return None
    first = head.partition("\n")[0]
    if not first.startswith("#!"):
        return None
    if found := _LONG.search(head):
        return found["path"].strip('"')
    words = first[2:].split()
    if not words:
        return None
    if (found := _WRAPPER.search(head)) and _is_shell(words) and deeper:
        wrapped = found["path"].strip("\"'")
        return wrapped if _is_python(wrapped) else _named_in(wrapped, environ, deeper - 1)
    if os.path.basename(words[0]) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return shutil.which(named[0], path=environ.get("PATH")) if named and _is_python(named[0]) else None
    return words[0] if _is_python(words[0]) else None


def _is_python(path: str) -> bool:
    return "python" in os.path.basename(path)


def _is_shell(words: list[str]) -> bool:
    return any(os.path.basename(word) in ("sh", "bash", "dash", "zsh") for word in words)
