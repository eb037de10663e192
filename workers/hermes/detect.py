"""Which Hermes is here, which modes it has, and which one ``auto`` takes.

``auto`` tries ``bridge`` first (a greeting from Hermes' own interpreter decides), then ``stream-json`` (the help of
``hermes chat`` decides); ``text`` is always there. With ``HERMES_STREAM_ARGS`` the bridge is not tried: they are meant
for the command. Of these only ``bridge`` can ask a person, so a run that wants to be asked gets no other. ``api`` and
``quiet`` are taken where they are asked for by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.hermes.bridge_call import handshake
from workers.hermes.command import Unavailable, environment
from workers.hermes.process import NotStarted
from workers.hermes.settings import HermesSettings

__all__ = ["Detector", "Found", "find", "locate"]

_ASK_TIMEOUT = 30.0
_NUMBER = re.compile(r"\bv?(\d+\.\d+\S*)")
_REMEMBERED = 60.0
"""Seconds for which a Hermes without bridge is not tried again: it may have failed for a passing reason."""


@dataclass(frozen=True, slots=True)
class Found:
    """What ``find`` saw. ``trouble``: the program is there, and does not run."""

    path: str | None
    version: str = ""
    bridge: str = ""
    """Empty: the handshake succeeded; else why it did not."""
    lacks: tuple[str, ...] = ()
    """Callbacks that the bridge would use and this Hermes does not have."""
    streams: bool = False
    """It lists ``--format``."""
    mode: str = ""
    why: str = ""
    trouble: str = ""


def locate(settings: HermesSettings, environ: Mapping[str, str] | None = None) -> str | None:
    """Where the program is, looked up as a call's process looks it up."""
    return shutil.which(settings.bin, path=None if environ is None else environ.get("PATH"))


async def find(settings: HermesSettings, environ: Mapping[str, str] | None = None) -> Found:
    """Look for it and ask it: some seconds. Never raises for what Hermes does."""
    inherited = os.environ if environ is None else environ
    path = locate(settings, inherited)
    if path is None:
        return Found(None)
    try:
        version, streams = await _asked(path, environment(inherited, ""))
    except (OSError, TimeoutError, _Unwell) as error:
        return Found(path, trouble=str(error) or f"it did not answer within {_ASK_TIMEOUT:g} s")
    bridge = ""
    lacks: tuple[str, ...] = ()
    try:
        hello = await handshake(settings, inherited=inherited)
        version, lacks = hello.hermes_version or version, tuple(hello.lacks)
    except (Unavailable, NotStarted) as error:
        bridge = str(error)
    mode, why = _choose(settings, bridge, streams)
    return Found(path, version, bridge, lacks, streams, mode, why)


def _choose(settings: HermesSettings, bridge: str, streams: bool) -> tuple[str, str]:
    if settings.mode != "auto":
        return settings.mode, "HERMES_MODE says so"
    if settings.stream_args:
        command = "stream-json" if streams else "text"
        return command, "HERMES_STREAM_ARGS is set, so the command is used"
    if not bridge:
        return "bridge", "its Python was found and the bridge's handshake succeeded"
    if streams:
        return "stream-json", f"there is no bridge ({bridge}), and it lists --format"
    return "text", f"there is no bridge ({bridge}), and it does not list --format"


class Detector:
    """What a worker knows of its Hermes, asked once and forgotten when the program changes.

    ``environ`` is what the calls inherit: its PATH says which program is meant.
    """

    def __init__(self, settings: HermesSettings, environ: Mapping[str, str]) -> None:
        self._settings, self._environ = settings, environ
        self._streams: tuple[_Identity, bool] | None = None
        self._bridgeless: tuple[_Identity, float, str] | None = None
        self._asking = asyncio.Lock()

    def no_bridge(self) -> str:
        """Why the bridge is not tried now; empty: try it."""
        if self._bridgeless is None:
            return ""
        identity, until, why = self._bridgeless
        return why if identity == self._identity() and time.monotonic() < until else ""

    def bridge_failed(self, why: str) -> None:
        self._bridgeless = (self._identity(), time.monotonic() + _REMEMBERED, why)

    async def streams(self) -> bool:
        """Whether ``hermes chat`` has ``--format``. A Hermes that cannot be asked has not: its call will say why."""
        async with self._asking:
            identity = self._identity()
            if self._streams is None or self._streams[0] != identity:
                path = identity[0]
                answer = False
                with contextlib.suppress(OSError, TimeoutError, _Unwell):
                    answer = path is not None and await _lists_format(path, environment(self._environ, ""))
                    self._streams = (identity, answer)
                return answer
            return self._streams[1]

    def _identity(self) -> _Identity:
        path = locate(self._settings, self._environ)
        with contextlib.suppress(OSError):
            return (path, Path(path).resolve().stat().st_mtime_ns) if path else (None, 0)
        return path, 0


_Identity = tuple[str | None, int]


class _Unwell(Exception):
    """The program ran and failed."""


async def _asked(path: str, env: Mapping[str, str]) -> tuple[str, bool]:
    """Both at once; where one fails the other one is waited for all the same, so that nothing of it is left."""
    version, streams = await asyncio.gather(_version(path, env), _lists_format(path, env), return_exceptions=True)
    if isinstance(version, BaseException):
        raise version
    if isinstance(streams, BaseException):
        raise streams
    return version, streams


async def _version(path: str, env: Mapping[str, str]) -> str:
    """``Hermes Agent v0.19.0 (…)`` → ``0.19.0``; whatever else it says, as it says it."""
    lines = (await _output(path, env, "--version")).splitlines()
    told = lines[0].strip() if lines else "?"
    number = _NUMBER.search(told)
    return number[1] if number else told


async def _lists_format(path: str, env: Mapping[str, str]) -> bool:
    return "--format" in await _output(path, env, "chat", "--help")


async def _output(path: str, env: Mapping[str, str], *arguments: str) -> str:
    pipe = asyncio.subprocess.PIPE
    options: dict[str, Any] = {"stdin": asyncio.subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "env": dict(env)}
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(path, *arguments, **options, start_new_session=True)
    )
    try:
        # Shielded: asyncio, cancelled in it, ends the program alone and waits for pipes that its children may hold.
        process = await asyncio.shield(starting)
        out, err = await asyncio.wait_for(process.communicate(), _ASK_TIMEOUT)
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(_end(starting)))  # it is ended also for who does not wait for it
        raise
    if process.returncode != 0:
        last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise _Unwell(f"{' '.join(arguments)} ended with exit code {process.returncode}. {' '.join(last)}".strip())
    return out.decode("utf-8", "replace")


async def _end(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    try:
        process = await starting
    except OSError:
        return  # it did not start
    # Its whole group: the program may be a script that calls another one.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
