"""Hermes' agent, driven by a script of ours in Hermes' own Python: mode ``bridge``."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Mapping
from pathlib import Path
from uuid import uuid4

from workers.hermes.bridge_lines import BridgeLines, Hello, call_line
from workers.hermes.calls import Batch, Told
from workers.hermes.command import Call, Unavailable, environment
from workers.hermes.interpreter import interpreter
from workers.hermes.process import NotStarted, SupervisedProcess
from workers.hermes.settings import HermesSettings
from workers.hermes.verdict import Failure

__all__ = ["BridgeCall", "handshake"]

_BRIDGE = Path(__file__).with_name("bridge.py")
_INTERRUPT = 2.0
"""Seconds that an interrupt has before SIGTERM. They are part of the grace."""
_LAST_WORDS = 2.0
"""Seconds that the end of standard error is waited for, once the bridge has ended."""


class BridgeCall:
    """A ``HermesCall`` (see there). Cancelling ``read`` loses nothing: the next one goes on where it was."""

    mode = "bridge"

    def __init__(self, process: SupervisedProcess, lines: BridgeLines) -> None:
        self.process = process
        self._lines = lines
        self._held: Batch = []
        """What came together with the greeting."""
        self._started = time.monotonic()
        self._ended = False
        self._forcing: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls, settings: HermesSettings, call: Call, *, inherited: Mapping[str, str] | None = None
    ) -> BridgeCall:
        """Returns once the bridge has greeted; Hermes makes its agent meanwhile.

        ``inherited`` stands for the worker's environment. Raises ``NotStarted`` where there is no Hermes or no
        ``call.cwd``; ``Unavailable`` where Hermes' Python cannot be told, its modules lack what the bridge needs, or
        no greeting comes in time. Cancelled, it leaves nothing running.
        """
        process = await _spawn(settings, call, inherited, stdin=True)
        self = cls(process, BridgeLines(settings.line_max_bytes))
        process.write(call_line(_fields(call)))
        await _greeted(process, self._greet(), settings)
        return self

    async def _greet(self) -> BridgeLines:
        while not self._lines.greeted and (chunk := await self.process.read()):
            self._held += self._lines.feed(chunk)
        return self._lines

    @property
    def hello(self) -> Hello:
        assert self._lines.hello is not None, "start waits for it"
        return self._lines.hello

    @property
    def told(self) -> Told:
        return self._lines.told

    async def read(self) -> Batch | None:
        """The items of the next lines. The ``result`` line is the end, before the bridge's own."""
        if self._held:
            held, self._held = self._held, []
            return held
        if self._ended or self.told.finished:
            self._finish()
            return None
        chunk = await self.process.read()
        return self._lines.feed(chunk) if chunk else await self._end()

    def _finish(self) -> None:
        if not self._ended:
            self.told.duration_ms = (time.monotonic() - self._started) * 1_000
        self._ended = True

    async def _end(self) -> Batch:
        """The bridge is gone without a result."""
        self.told.exit_code = await self.process.wait()
        await self.process.stderr_end(_LAST_WORDS)
        self._finish()
        return self._lines.close()

    def verdict(self) -> Failure | None:
        return self._lines.verdict(self.told.exit_code, self.process.stderr)

    async def answer(self, key: str, answer: str) -> None:
        self._send({"type": "answer", "id": key, "answer": answer})

    def _send(self, request: Mapping[str, str]) -> None:
        self.process.write(json.dumps(request).encode() + b"\n")

    @property
    def stderr(self) -> str:
        return self.process.stderr

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        if self._forcing is None:
            self._send({"type": "interrupt"})
            self._forcing = asyncio.get_running_loop().call_later(_INTERRUPT, self.process.stop)

    def kill(self) -> None:
        self.process.kill()

    async def aclose(self, *, patience: float = 0.0) -> None:
        try:
            await self.process.aclose(patience=patience)
        finally:
            if self._forcing is not None:
                self._forcing.cancel()


async def handshake(settings: HermesSettings, *, inherited: Mapping[str, str] | None = None) -> Hello:
    """What the bridge finds in this Hermes; no call is made, no model is asked.

    Raises ``NotStarted`` where there is no Hermes, ``Unavailable`` where it cannot be driven.
    """
    process = await _spawn(settings, Call(prompt=""), inherited, "--handshake")
    bridge = BridgeCall(process, BridgeLines(settings.line_max_bytes))
    await _greeted(process, bridge._greet(), settings)
    await bridge.aclose()
    return bridge.hello


async def _spawn(
    settings: HermesSettings, call: Call, inherited: Mapping[str, str] | None, *options: str, stdin: bool = False
) -> SupervisedProcess:
    environ = os.environ if inherited is None else inherited
    python = [settings.python] if settings.python else interpreter(settings.bin, environ)
    mark = uuid4().hex
    # Its notices are known by their English words.
    env = environment(environ, mark, extra={"HERMES_LANGUAGE": "en", **call.env})
    try:
        return await SupervisedProcess.start(
            [*python, str(_BRIDGE), *options],
            env,
            grace=settings.grace - _INTERRUPT,
            mark=mark,
            cwd=call.cwd,
            stdin=stdin,
        )
    except NotStarted as error:
        if error.missing:
            raise Unavailable(f"Hermes' Python {error}") from error
        raise


def _fields(call: Call) -> dict[str, object]:
    return {
        "prompt": call.prompt,
        "model": call.model,
        "provider": call.provider,
        "toolsets": list(call.toolsets),
        "max_turns": call.max_turns,
        "resume": call.resume,
        "approvals": "yolo" if call.yolo else "ask",
        "cwd": call.cwd,
    }


async def _greeted(process: SupervisedProcess, greeting: Awaitable[BridgeLines], settings: HermesSettings) -> None:
    """Wait for the bridge's first line. Raises ``Unavailable``, and leaves nothing running then, or where cancelled."""
    try:
        async with asyncio.timeout(settings.bridge_handshake):
            lines = await greeting
            if lines.hello is None and lines.unavailable is None:
                raise Unavailable(await _last_words(process))
            if lines.unavailable is not None:
                raise Unavailable(lines.unavailable)
    except TimeoutError:
        await _put_away(process)
        said = f"the bridge did not greet within HERMES_BRIDGE_HANDSHAKE ({settings.bridge_handshake:g} s)"
        raise Unavailable(said) from None
    except BaseException:
        await _put_away(process)
        raise


async def _last_words(process: SupervisedProcess) -> str:
    code = await process.wait()
    await process.stderr_end(_LAST_WORDS)
    last = process.stderr.strip().splitlines()[-1:]
    return f"the bridge ended with exit code {code} before it greeted. {' '.join(last)}".strip()


async def _put_away(process: SupervisedProcess) -> None:
    process.kill()
    await process.aclose()
