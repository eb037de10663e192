"""``runcast runs``, ``show`` and ``cancel``: the run registry from the command line."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click
import msgspec

from broker import api
from broker.listing import LIMIT_MAX
from broker.records import STATUSES, RunRecord
from gateway.answers import view
from ops.asks import fields_of, shown
from ops.exits import Exit
from ops.options import json_option, load_settings, redis_option
from ops.render import message_text, seconds, tokens
from ops.terminal import Terminal, printable

__all__ = ["cancel", "describe", "runs", "show"]

_STYLES = {"queued": "yellow", "running": "cyan", "completed": "green", "failed": "red", "cancelled": "yellow"}


def describe(record: RunRecord, first: int | None = None) -> Any:
    """A run as ``GET /v1/runs/{run_id}`` answers it; without ``first`` as it stands in lists."""
    return msgspec.to_builtins(view(record, first))


def _when(stamp: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp)) if stamp else ""


def _took(record: RunRecord) -> str:
    if not record.started:
        return ""
    return seconds(max((record.ended or time.time()) - record.started, 0.0))


def _message(record: RunRecord) -> str:
    given = record.request.get("input")
    text = str(given.get("message", "")).lstrip() if isinstance(given, dict) else ""
    # What a task tells its steps below the first line is the same for all.
    line = " ".join(printable(text.partition("\n")[0] if record.request.get("parent_run_id") else text).split())
    return line if len(line) <= 60 else line[:59] + "…"


@click.command()
@click.option("--status", type=click.Choice(STATUSES), help="Only runs with this status.")
@click.option("--session", "session_id", metavar="ID", help="Only runs of this conversation.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=20, show_default=True, help="Runs of a page.")
@click.option("--before", metavar="TOKEN", help="The next page: the token that was printed under the one before.")
@json_option
@redis_option
def runs(
    status: str | None, session_id: str | None, limit: int, before: str | None, as_json: bool, redis_url: str | None
) -> Exit:
    """List runs, newest first."""
    return asyncio.run(_runs(status, session_id, limit, before, as_json, redis_url))


async def _runs(
    status: str | None, session_id: str | None, limit: int, before: str | None, as_json: bool, redis_url: str | None
) -> Exit:
    terminal = Terminal()
    async with api.open(settings=load_settings(redis_url)) as broker:
        found, more = await broker.runs.list(status=status, session_id=session_id, limit=limit, before=before)
    if as_json:
        for record in found:
            terminal.json(describe(record))
        return Exit.OK
    columns = {"run": "bold", "status": "", "runner": "", "created": "", "took": "", "items": "", "prompt": "dim"}
    rows = [[r.run_id, r.status, r.runner, _when(r.created), _took(r), str(r.last), _message(r)] for r in found]
    if terminal.narrow:
        # An id that is broken over two lines cannot be copied.
        columns = {name: style for name, style in columns.items() if name not in ("took", "items")}
        rows = [[*row[:3], row[3][5:16], row[6]] for row in rows]
    if rows:
        terminal.table(columns, rows)
    else:
        terminal.note("no runs")
    if more:
        terminal.note(f"older ones: --before {more}")
    return Exit.OK


@click.command()
@click.argument("run_id", metavar="RUN")
@json_option
@redis_option
def show(run_id: str, as_json: bool, redis_url: str | None) -> Exit:
    """Show what is known of RUN: status, times, usage, outcome."""
    return asyncio.run(_show(run_id, as_json, redis_url))


async def _show(run_id: str, as_json: bool, redis_url: str | None) -> Exit:
    terminal = Terminal()
    async with api.open(settings=load_settings(redis_url)) as broker:
        record, first = await broker.log.bounds(run_id)
    if as_json:
        terminal.json(describe(record, first))
        return Exit.OK
    for name, value in _facts(record, first):
        if value:
            terminal.styled(f"{name:<11} {value}", _STYLES.get(value, ""))
    text = _outcome_text(record).strip("\n")
    if text:
        terminal.line()
        terminal.line(printable(text) if terminal.interactive else text)
    return Exit.OK


def _facts(record: RunRecord, first: int) -> list[tuple[str, str]]:
    kept = f"1 to {record.last}" if first == 1 else f"{first} to {record.last} (earlier ones were removed)"
    if first > record.last:
        kept = f"none kept of {record.last}" if record.last else "none yet"
    cost = record.cost or {}
    return [
        ("run", record.run_id),
        ("status", record.status),
        ("cancelling", "asked for" if record.cancel_requested and not record.ended_ else ""),
        ("asks", "; ".join(f"{ask.kind}: {' · '.join(shown(fields_of(ask)))}" for ask in record.asks)),
        ("runner", record.runner),
        ("session", record.session_id or ""),
        ("attempt", str(record.attempt) if record.attempt > 1 else ""),
        ("created", _when(record.created)),
        ("started", _when(record.started)),
        ("ended", _when(record.ended)),
        ("took", _took(record)),
        ("items", kept),
        ("usage", tokens(record.usage)),
        ("cost", f"{cost['total']} {cost.get('currency', 'USD')}" if cost.get("total") else ""),
        ("metadata", ", ".join(f"{k}={printable(v)}" for k, v in record.metadata.items())),
        ("prompt", _message(record)),
    ]


def _outcome_text(record: RunRecord) -> str:
    """The answer of a completed run; why and how far for the others."""
    item = (record.outcome or {}).get("item") or {}
    if record.status == "completed":
        return message_text(item.get("message"))
    if not item:
        return ""
    partial = message_text(item.get("partial"))
    return f"{item.get('code')}: {item.get('message', '')}" + (f"\n\n{partial}" if partial else "")


@click.command()
@click.argument("run_id", metavar="RUN")
@json_option
@redis_option
def cancel(run_id: str, as_json: bool, redis_url: str | None) -> Exit:
    """Cancel RUN. The request is kept: a worker that is away now obeys it later. Repeating it is harmless.

    Exit code: 0 cancelled or asked for, 3 no such run, 6 it has ended already.
    """
    return asyncio.run(_cancel(run_id, as_json, redis_url))


async def _cancel(run_id: str, as_json: bool, redis_url: str | None) -> Exit:
    terminal = Terminal()
    async with api.open(settings=load_settings(redis_url)) as broker:
        record = await broker.runs.cancel(run_id)
    if as_json:
        terminal.json({"run_id": run_id, "status": record.status, "cancel_requested": bool(record.cancel_requested)})
    else:
        terminal.note("cancelled" if record.ended_ else "asked for: its worker ends it")
    return Exit.OK
