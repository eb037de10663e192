"""Answering while a run is followed: what a run asks is answered where it is seen.

On a terminal the next line that is typed is the answer to the oldest open ask. Anywhere else a hint says which command
answers it. Only what is open now is asked for: of a run that is shown again its asks are history.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
from collections.abc import Coroutine
from typing import Any

from broker.api import Broker
from broker.errors import AlreadyAnswered, BadRequest, RuncastError, StoreUnavailable
from broker.records import OpenAsk
from ops.asks import TITLES, fields_of, meaning, numbered, shown, what_is_allowed
from ops.render import Shown
from ops.terminal import Terminal, printable

__all__ = ["Inline", "reads_lines"]

_PAUSE = 1.0


def reads_lines() -> bool:
    """Somebody can type into this process."""
    try:
        return sys.stdin.fileno() == 0 and sys.stdin.isatty()
    except (AttributeError, OSError, ValueError):  # replaced, or closed
        return False


def _in_front() -> bool:
    """A process in the background is stopped when it touches its terminal."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True


class Inline:
    """Use as an async context manager; show it each entry. ``reading``: take answers from the terminal."""

    def __init__(self, terminal: Terminal, broker: Broker, run_id: str, *, command: str, reading: bool) -> None:
        self._terminal, self._broker, self._run_id = terminal, broker, run_id
        self._command, self._reading = command, reading
        self._waiting: list[OpenAsk] = []
        self._prompted = ""
        self._known: set[str] = set()
        self._seen: set[str] = set()
        self._unseen = False
        self._changed = asyncio.Event()
        self._line = b""
        self._listening = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Inline:
        self._start(self._keep_up())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listen(False)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def see(self, entry: Shown) -> None:
        """An entry of the run was shown."""
        if entry.type == "event" and entry.fields.get("name") in (*TITLES, "input.answered"):
            # The record knows an ask before its item comes by: nobody is to answer what he has not been shown.
            self._seen.add(str(entry.fields.get("request_id")))
            self._changed.set()

    def look(self) -> None:
        """What is asked may stand in a part of the run that is not shown."""
        self._unseen = True
        self._changed.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_up(self) -> None:
        """One look at the record for however many asks went by."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                asks = (await self._broker.runs.get(self._run_id)).asks
            except StoreUnavailable:
                await asyncio.sleep(_PAUSE)
                self._changed.set()
                continue
            except RuncastError:
                continue  # whoever follows the run tells
            self._stands([ask for ask in asks if self._unseen or ask.request_id in self._seen])

    def _stands(self, asks: list[OpenAsk]) -> None:
        self._waiting = list(asks)
        fresh = [ask for ask in asks if ask.request_id not in self._known]
        self._known |= {ask.request_id for ask in fresh}
        if not self._reading:
            for ask in fresh:
                self._hint(ask)
        elif not asks:
            self._listen(False)
        elif self._prompted != asks[0].request_id:
            self._prompted = asks[0].request_id
            self._listen(True)
            self._prompt()

    def _hint(self, ask: OpenAsk) -> None:
        answers = what_is_allowed(ask.choices, ask.free)
        if not self._terminal.interactive or ask.request_id not in self._seen:
            self._terminal.warn(f"{self._run_id} asks for an answer ({ask.kind}): {' · '.join(shown(fields_of(ask)))}")
        self._terminal.warn(f"answer it ({answers}): {self._command} input {self._run_id} ANSWER")

    def _prompt(self) -> None:
        ask, more = self._waiting[0], len(self._waiting) - 1
        what = f"type an answer: {numbered(ask.choices, ask.free)}"
        if more or ask.request_id not in self._seen:
            what = f"{what}  (to “{' · '.join(shown(fields_of(ask)))[:200]}”"
            what += f"; {more} more after it)" if more else ")"
        self._terminal.warn(what)

    # The terminal.

    def _listen(self, on: bool) -> None:
        if on == self._listening:
            return
        self._listening, self._line = on, b""
        if not on:
            asyncio.get_running_loop().remove_reader(0)
            return
        if _in_front():  # what was typed before anything was asked is no answer to it
            with contextlib.suppress(termios.error):
                termios.tcflush(0, termios.TCIFLUSH)
        self._attend()

    def _attend(self) -> None:
        if self._listening:
            asyncio.get_running_loop().add_reader(0, self._readable)

    def _readable(self) -> None:
        if not _in_front():
            loop = asyncio.get_running_loop()
            loop.remove_reader(0)
            loop.call_later(_PAUSE, self._attend)
            return
        try:
            chunk = os.read(0, 4096)
        except OSError:
            chunk = b""
        if not chunk:  # end of input, or the terminal is gone
            self._listen(False)
            self._reading = False
            return
        *lines, self._line = (self._line + chunk).split(b"\n")
        for line in lines:
            self._typed(line.decode(errors="replace"))

    def _typed(self, line: str) -> None:
        if not self._waiting:
            return
        ask = self._waiting[0]
        answer = meaning(line, ask)
        if answer is None:
            self._terminal.warn(f"the answers are {what_is_allowed(ask.choices, ask.free)}")
            return
        del self._waiting[0]
        self._start(self._answer(ask, answer))

    async def _answer(self, ask: OpenAsk, answer: str) -> None:
        try:
            await self._broker.runs.answer(self._run_id, ask.request_id, answer)
        except AlreadyAnswered as first:
            self._terminal.warn(printable(str(first)))
        except BadRequest as error:
            self._terminal.warn(printable(str(error)))
        except RuncastError as error:
            self._terminal.warn(f"the answer did not arrive: {error}")
        self._changed.set()
