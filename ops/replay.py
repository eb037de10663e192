"""``runcast replay``: what is stored of a run, again: to the terminal, as frames, or as a new run."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator

import click
import msgspec

from broker import api
from broker.errors import Conflict
from broker.items import FENCES, Entry, Mode, Raw, modes_of
from broker.records import RunRecord
from gateway.formats import FORMATS, Format, get_format
from ops.exits import Exit
from ops.follow import Interrupts, Line, line_of_entry
from ops.lines import line_of_item
from ops.options import Number, json_option, load_settings, modes_option, redis_option
from ops.owned import OwnedRun, own_run, publish
from ops.render import Renderer
from ops.run import command_name, renderer_for
from ops.terminal import Terminal

__all__ = ["replay"]

_PAGE = 500


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--from", "first", type=click.IntRange(min=1), default=1, metavar="SEQ", help="First item.  [default: 1]")
@click.option(
    "--speed",
    type=Number(min=0),
    metavar="X",
    help="1: with the run's timing; 2: twice as fast; 0: at once.  [default: 1 on a terminal and with --into; else 0]",
)
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help=f"text, json (as --json), ndjson (as export), or a wire format: {', '.join(FORMATS)}.  [default: text]",
)
@click.option(
    "--into", metavar="NEW", help="Publish the items again as the run NEW (auto: an id is made), for UIs to watch."
)
@modes_option
@json_option
@redis_option
def replay(
    run_id: str,
    first: int,
    speed: float | None,
    format_: str | None,
    into: str | None,
    modes: Mode | None,
    as_json: bool,
    redis_url: str | None,
) -> Exit:
    """Show what is stored of RUN, from its first item or --from; a running run as far as it has come.

    Exit code 0, however the run ended.
    """
    if into is not None and (format_ or modes or as_json):
        raise click.UsageError("--into publishes every item: --format, --modes and --json do not go with it")
    terminal = Terminal()
    if speed is None:
        speed = 1.0 if into is not None or terminal.interactive else 0.0
    if into is not None:
        return asyncio.run(_republish(terminal, run_id, first, speed, into, redis_url))
    chosen = "json" if as_json else (format_ or "text")
    return asyncio.run(_replay(terminal, run_id, first, speed, chosen, modes, redis_url))


class _Sink:
    """What replayed entries are given to. ``wire`` formats are bytes, the others go through a renderer."""

    def __init__(self, terminal: Terminal, record: RunRecord, chosen: str, modes: Mode | None, retry_ms: int) -> None:
        self._record, self._modes = record, modes or Mode.EVENTS
        self.last = 0
        self._lines = chosen == "ndjson"
        self._wire: Format | None = None
        self._renderer: Renderer | None = None
        if chosen in ("text", "json"):
            self._renderer = renderer_for(terminal, record.run_id, as_json=chosen == "json", modes=modes)
        elif not self._lines:
            self._wire = get_format(chosen)
            self._bytes(self._wire.opening(retry_ms))

    def gap(self, requested: int, earliest: int, latest: int) -> None:
        run_id = self._record.run_id
        if self._wire is not None:
            self._bytes(self._wire.gap(run_id, requested, earliest, latest))
        elif self._renderer is not None:
            self._renderer.feed(Line(0, "gap", {"requested": requested, "earliest": earliest, "latest": latest}))

    def feed(self, entry: Entry) -> None:
        self.last = entry.seq
        if self._wire is not None:
            self._bytes(self._wire.items(self._record.run_id.encode(), [entry], self._modes))
        elif modes_of(entry.type) & self._modes or Mode.EVENTS in self._modes:
            if self._lines:
                self._bytes(line_of_item(entry))
            elif self._renderer is not None:
                self._renderer.feed(line_of_entry(entry))

    def close(self, record: RunRecord | None) -> None:
        """``None``: the replay was left before its end."""
        ended = record is not None and record.ended_
        if self._renderer is not None:
            self._renderer.close(self._record.status if ended else None)
        elif self._wire is not None and ended:
            self._bytes(self._wire.end(self._record.run_id, self._record.status, self._record.last))

    def _bytes(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


async def _replay(
    terminal: Terminal, run_id: str, first: int, speed: float, chosen: str, modes: Mode | None, redis_url: str | None
) -> Exit:
    if chosen not in ("text", "json", "ndjson"):
        get_format(chosen)  # refuse a wrong name before anything is asked
    with Interrupts() as interrupts:
        async with api.open(settings=load_settings(redis_url)) as broker:
            record, kept = await broker.log.bounds(run_id)
            sink = _Sink(terminal, record, chosen, modes, broker.settings.retry_ms)
            if first < kept and record.last:
                sink.gap(first - 1, kept, record.last)
            showing = asyncio.create_task(_show(sink, _paced(_entries(broker, record, max(first, kept)), speed)))
            if await interrupts.race(showing) is not None:
                showing.cancel()
                await asyncio.wait({showing})
                sink.close(None)
                terminal.note(
                    f"stopped; go on: {command_name()} replay {run_id} --from {max(sink.last, first - 1) + 1}"
                )
                return Exit.INTERRUPTED
            sink.close(record)
            if not record.ended_:
                ahead = f"{command_name()} tail {run_id} --from {record.last + 1}"
                terminal.note(f"{run_id} is still {record.status}; follow it: {ahead}")
    return Exit.OK


async def _show(sink: _Sink, entries: AsyncIterator[Entry]) -> None:
    async for entry in entries:
        sink.feed(entry)


async def _entries(broker: api.Broker, record: RunRecord, first: int) -> AsyncIterator[Entry]:
    """The stored items from ``first`` up to the end that the log had when the command began."""
    after = first - 1
    while after < record.last and (page := await broker.log.read(record.run_id, after, limit=_PAGE, until=record.last)):
        for entry in page:
            yield entry
        after = page[-1].seq


async def _paced(entries: AsyncIterator[Entry], speed: float) -> AsyncIterator[Entry]:
    """Each entry when its time has come: as long after the first one as it was, divided by ``speed``. 0: at once."""
    clock = asyncio.get_running_loop().time
    began, zero = clock(), None
    async for entry in entries:
        if speed:
            ts = msgspec.json.decode(entry.data, type=_Stamp).ts
            zero = ts if zero is None else zero
            await asyncio.sleep((ts - zero) / speed - (clock() - began))
        yield entry


class _Stamp(msgspec.Struct):
    ts: float = 0.0


async def _republish(
    terminal: Terminal, run_id: str, first: int, speed: float, into: str, redis_url: str | None
) -> Exit:
    with Interrupts(signal.SIGINT, signal.SIGTERM) as interrupts:
        async with api.open(settings=load_settings(redis_url)) as broker:
            record, kept = await broker.log.bounds(run_id)
            _refuse_what_cannot_be_replayed(record, kept, first)
            made, origin = None if into == "auto" else into, {"replay_of": run_id}
            async with own_run(broker, run_id=made, metadata=origin, what=f"replay of {run_id}") as run:
                terminal.line(run.run_id)
                terminal.note(f"watch it: {command_name()} tail {run.run_id}")
                entries = _paced(_entries(broker, record, max(first, kept)), speed)
                return await publish(terminal, run, interrupts, _copy(run, entries))


def _refuse_what_cannot_be_replayed(record: RunRecord, kept: int, first: int) -> None:
    if not record.ended_:
        raise Conflict(f"run {record.run_id!r} is still {record.status}: --into replays ended runs")
    if max(first, kept) > record.last:
        reach = f"it ends at {record.last}, the first kept is {kept}"
        raise Conflict(f"run {record.run_id!r} has no items from {first} on: {reach}")


async def _copy(run: OwnedRun, entries: AsyncIterator[Entry]) -> Exit:
    async for entry in entries:
        item = _without_time(entry)
        await (run.seal(item) if item.type in FENCES else run.publish(item))
    return Exit.OK


def _without_time(entry: Entry) -> Raw:
    """The same item, to be stamped again: viewers of the new run see the times at which it was published there."""
    fields = msgspec.json.decode(entry.data)
    fields.pop("ts", None)
    return Raw(entry.type.decode(), fields)
