"""How a call of Hermes is read to its end: limits of time, last words, what is asked meanwhile, cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

import pytest

from broker.items import MessageDelta
from tests.servers import eventually
from workers.hermes.calls import Batch, Drive, HermesCall, Told
from workers.hermes.settings import HermesSettings
from workers.hermes.verdict import Failure


class Played:
    """A call that says what it is told to. Stopped, it has last words; ``deaf``: it does not hear the stop."""

    mode = "played"

    def __init__(self, *batches: Batch | Exception | None, deaf: bool = False, failure: Failure | None = None) -> None:
        self.told = Told()
        self.stops = 0
        self.reads = 0
        self.reading = 0
        self._deaf, self._failure = deaf, failure
        self._said: asyncio.Queue[Batch | Exception | None] = asyncio.Queue()
        for batch in batches:
            self.say(batch)

    def say(self, batch: Batch | Exception | None) -> None:
        self._said.put_nowait(batch)

    async def read(self) -> Batch | None:
        assert self.reading == 0, "two read at once"
        self.reading += 1
        self.reads += 1
        try:
            said = await self._said.get()
        finally:
            # As a reader of a pipe, which is free again only when its task has run to its end.
            self.reading -= 1
        if isinstance(said, Exception):
            raise said
        return said

    def verdict(self) -> Failure | None:
        return self._failure

    async def answer(self, key: str, answer: str) -> None:
        """Asks nobody."""

    def stop(self) -> None:
        self.stops += 1
        if not self._deaf:
            self.say(text("last words"))
            self.say(None)

    def kill(self) -> None:
        self.say(None)

    @property
    def stderr(self) -> str:
        return ""

    async def aclose(self, *, patience: float = 0.0) -> None:
        while await self.read() is not None:
            pass


class Flooding(Played):
    """Always has more to say, at once, until it is stopped."""

    async def read(self) -> Batch | None:
        return await super().read() if self.stops else []


def text(said: str) -> Batch:
    return [MessageDelta(text=said)]


def drive(call: HermesCall, *, timeout: float = 0.0, silence: float = 0.0) -> Drive:
    return Drive(call, HermesSettings(bin="hermes", timeout=timeout, silence=silence))


async def read_all(driven: Drive, each: Callable[[str], None] = lambda said: None) -> list[str]:
    seen = []
    async with asyncio.timeout(20), aclosing(driven.batches()) as batches:
        async for batch in batches:
            said = "".join(item.text for item in batch if isinstance(item, MessageDelta))
            seen.append(said)
            each(said)
    return seen


def code(driven: Drive) -> str:
    failure = driven.verdict()
    return "" if failure is None else failure.code


async def test_without_limits_a_call_is_read_to_its_end() -> None:
    call = Played(text("a"), [], text("b"), None)
    driven = drive(call)
    assert await read_all(driven) == ["a", "", "b"]
    assert (driven.verdict(), call.stops) == (None, 0)


async def test_what_the_call_says_of_its_end_is_the_verdict() -> None:
    driven = drive(Played(None, failure=Failure("empty_reply", "nothing", True)))
    assert await read_all(driven) == []
    assert code(driven) == "empty_reply"


@pytest.mark.parametrize("limit", ["timeout", "silence"])
async def test_past_a_limit_the_call_is_stopped_once_and_its_last_words_are_heard(limit: str) -> None:
    call = Played(text("partial"), failure=Failure("interrupted", "by somebody"))
    driven = drive(call, **{limit: 0.2})
    begun = time.monotonic()
    assert await read_all(driven) == ["partial", "last words"]
    assert time.monotonic() - begun >= 0.2
    failure = driven.verdict()
    assert failure is not None
    assert (failure.code, failure.retryable) == ({"timeout": "hermes_timeout", "silence": "hermes_silent"}[limit], True)
    assert f"HERMES_{limit.upper()} (0.2 s)" in failure.message
    assert call.stops == 1


async def test_a_call_that_always_has_more_to_say_is_stopped_all_the_same() -> None:
    call = Flooding()
    driven = drive(call, timeout=0.2)
    seen = await read_all(driven)
    assert (code(driven), call.stops, seen[-1]) == ("hermes_timeout", 1, "last words")


async def test_every_sign_of_life_ends_the_silence() -> None:
    call = Played()
    driven = drive(call, silence=1.5)

    async def mutter() -> None:
        for _ in range(6):  # 1.8 s in all
            await asyncio.sleep(0.3)
            call.say([])
        call.say(None)

    muttering = asyncio.create_task(mutter())
    assert await read_all(driven) == [""] * 6
    assert driven.verdict() is None
    await muttering


async def test_time_that_the_reader_takes_is_no_silence() -> None:
    """Back-pressure: the store is slow, Hermes is not."""
    call = Played(text("a"), text("b"), None)
    driven = drive(call, silence=0.1)
    async with aclosing(driven.batches()) as batches:
        async for _ in batches:
            await asyncio.sleep(0.2)
    assert driven.verdict() is None


async def test_while_a_person_is_asked_there_is_no_silence_and_then_it_counts_anew() -> None:
    call = Played()
    driven = drive(call, silence=0.2)
    reading = asyncio.create_task(read_all(driven))
    with driven.asking():
        with driven.asking():
            await asyncio.sleep(0.5)
        await asyncio.sleep(0.3)  # one of the two is open still
        assert call.stops == 0
        answered = time.monotonic()
    await eventually(lambda: call.stops == 1)
    assert time.monotonic() - answered >= 0.19
    assert (await reading, code(driven)) == (["last words"], "hermes_silent")


async def test_the_limit_of_a_whole_run_counts_while_a_person_is_asked() -> None:
    driven = drive(Played(), timeout=0.2, silence=0.1)
    with driven.asking():
        await read_all(driven)
    assert code(driven) == "hermes_timeout"


async def test_after_a_limit_nothing_is_hurried_but_the_call() -> None:
    """How long a stop may take is the call's matter: it has the grace."""
    call = Played(deaf=True)
    driven = drive(call, silence=0.1)
    reading = asyncio.create_task(read_all(driven))
    await eventually(lambda: call.stops == 1)
    await asyncio.sleep(0.3)
    assert not reading.done()
    call.say(text("late"))
    call.say(None)
    assert (await reading, call.stops, code(driven)) == (["late"], 1, "hermes_silent")


async def test_what_a_read_raises_is_raised() -> None:
    driven = drive(Played(text("a"), OSError("the pipe is broken")))
    with pytest.raises(OSError, match="the pipe is broken"):
        await read_all(driven)


async def test_cancelled_while_it_waits_nobody_reads_any_more() -> None:
    """Whoever cleans up reads on at once."""
    call = Played(text("a"))
    driven = drive(call)

    async def run() -> None:
        try:
            await read_all(driven)
        finally:
            assert call.reading == 0
            call.say(None)
            await call.aclose()

    running = asyncio.create_task(run())
    await eventually(lambda: call.reads == 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert call.reads == 3


async def test_left_between_two_batches_nothing_is_read_ahead() -> None:
    call = Played(text("a"), text("b"), None)
    async with aclosing(drive(call).batches()) as batches:
        await anext(batches)
    assert call.reads == 1
    assert await call.read() == text("b")
