"""``runcast export`` and ``runcast import``: a run as lines of JSON, out and in."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator

import click

from broker import api
from broker.errors import InvalidItem, RuncastError
from broker.items import FENCES
from ops.exits import Exit
from ops.follow import Interrupts
from ops.lines import Splitter, item_of_line, line_of_item
from ops.options import json_option, load_settings, redis_option
from ops.owned import OwnedRun, own_run, publish
from ops.terminal import Terminal

__all__ = ["export_run", "import_run"]

_PAGE = 500
_QUEUE = 256


@click.command("export")
@click.argument("run_id", metavar="RUN")
@redis_option
def export_run(run_id: str, redis_url: str | None) -> Exit:
    """Write RUN's items to stdout, one a line: {"type", "ts", "component_id", "data"}.

    A running run is written as far as it has come. What retention removed is missing, which is said on stderr.
    """
    return asyncio.run(_export(run_id, redis_url))


async def _export(run_id: str, redis_url: str | None) -> Exit:
    terminal = Terminal()
    out = sys.stdout.buffer
    async with api.open(settings=load_settings(redis_url)) as broker:
        record, first = await broker.log.bounds(run_id)
        if first > 1:
            terminal.warn(f"items 1 to {first - 1} are gone: retention removed them")
        after = first - 1
        while entries := await broker.log.read(run_id, after, limit=_PAGE, until=record.last):
            out.write(b"".join(map(line_of_item, entries)))
            out.flush()
            after = entries[-1].seq
        if not record.ended_:
            terminal.note(f"{run_id} is still {record.status}: exported as far as item {after}")
    return Exit.OK


@click.command("import")
@click.option("--run", "run_id", metavar="ID", help="Id of the new run.  [default: made here]")
@click.option("--session", "session_id", metavar="ID", help="Conversation that the run belongs to.")
@json_option
@redis_option
def import_run(run_id: str | None, session_id: str | None, as_json: bool, redis_url: str | None) -> Exit:
    """Publish stdin as a new run: one item a line, {"type", "ts"?, "component_id"?, "data": {…}}.

    The run's id is printed first. Lines are published as they arrive, so a pipe is a live publisher. Input that ends
    without a fence (final, failed, cancelled) ends the run as failed, as does a line that is no item; the exit code
    says so: 0 the input had its fence, 1 it had none, 2 a bad line, 5 the run was cancelled.
    """
    return asyncio.run(_import(run_id, session_id, as_json, redis_url))


async def _import(run_id: str | None, session_id: str | None, as_json: bool, redis_url: str | None) -> Exit:
    terminal = Terminal()
    with Interrupts(signal.SIGINT, signal.SIGTERM) as interrupts:
        async with (
            api.open(settings=load_settings(redis_url)) as broker,
            own_run(broker, run_id=run_id, session_id=session_id, what="items from runcast import") as run,
        ):
            if as_json:
                terminal.json({"run_id": run.run_id})
            else:
                terminal.line(run.run_id)
            return await publish(terminal, run, interrupts, _Import(terminal, run).read(_stdin_lines()))


class _Import:
    """Line numbers, and what each kind of end means."""

    def __init__(self, terminal: Terminal, run: OwnedRun) -> None:
        self._terminal, self._run = terminal, run
        self._line = 0
        self._fence = 0

    async def read(self, lines: AsyncIterator[bytes]) -> Exit:
        try:
            async for line in lines:
                self._line += 1
                if line.strip():
                    await self._publish(line)
        except InvalidItem as error:
            return await self._bad_line(error)
        if self._fence:
            count = self._run.publisher.last
            self._terminal.note(f"{self._run.run_id}: {count} item{'' if count == 1 else 's'}")
            return Exit.OK
        message = f"the input ended after line {self._line} without a fence (final, failed or cancelled)"
        await self._run.fail("no_fence", message)
        self._terminal.error(f"{message}: {self._run.run_id} is sealed as failed")
        return Exit.FAILED

    async def _publish(self, line: bytes) -> None:
        if self._fence:
            raise InvalidItem(f"the run has its fence (line {self._fence}): nothing may follow it")
        item = item_of_line(line)
        if item.type in FENCES:
            await self._run.seal(item)
            self._fence = self._line
        else:
            await self._run.publish(item)

    async def _bad_line(self, error: RuncastError) -> Exit:
        message = f"line {self._line}: {error}"
        if self._fence:
            self._terminal.error(f"{message}; the run is complete, the rest of the input is ignored")
            return Exit.USAGE
        await self._run.fail("invalid_item", message)
        self._terminal.error(f"{message}; what came before is published, {self._run.run_id} is sealed as failed")
        return Exit.USAGE


async def _stdin_lines() -> AsyncIterator[bytes]:
    """Lines of stdin as they arrive. A thread reads, since files, pipes and terminals need different ways otherwise;
    it is a daemon and reads the descriptor, so that a blocked read holds nothing up at exit."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_QUEUE)
    room = threading.Semaphore(_QUEUE)

    def read() -> None:
        while True:
            room.acquire()
            try:
                chunk: bytes | OSError = os.read(0, 1 << 16)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: the command has ended
                return
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    splitter = Splitter()
    while chunk := await chunks.get():
        room.release()
        if isinstance(chunk, OSError):
            raise chunk
        for line in splitter.feed(chunk):
            yield line
    last = splitter.end()
    if last is not None:
        yield last
