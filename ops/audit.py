"""``runcast audit``: who did what, when, how it ended and what it cost, as lines of JSON."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from datetime import UTC, datetime

import click

from broker import api
from broker.api import Broker
from broker.audit_entries import AuditEntry
from broker.errors import StoreUnavailable
from ops.exits import Exit
from ops.follow import Interrupts
from ops.options import load_settings, redis_option
from ops.terminal import Terminal

__all__ = ["audit"]

_AGE = re.compile(r"(\d{1,9})([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_ENTRY = re.compile(r"\d{1,19}-\d{1,19}\Z")
_PAUSE = 1.0


@click.command()
@click.option("--since", metavar="WHEN", help="30m, 12h, 7d; 2026-01-31 or 2026-01-31T08:00 (UTC); an entry's id.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes.")
@redis_option
def audit(since: str | None, follow: bool, redis_url: str | None) -> Exit:
    """Write the audit to stdout, one JSON object a line, oldest first.

    An entry's id is its place: with --since ID it goes on behind that entry.
    """
    return asyncio.run(_audit(_after(since, time.time()), follow, redis_url))


def _after(since: str | None, now: float) -> str:
    """The entry id behind which to begin."""
    if since is None:
        return "0-0"
    if _ENTRY.match(since):
        return since
    if age := _AGE.match(since):
        moment = now - int(age[1]) * _SECONDS[age[2]]
    else:
        try:
            moment = datetime.fromisoformat(since.removesuffix("Z")).replace(tzinfo=UTC).timestamp()
        except ValueError as error:
            told = f"{since!r} is no time: 30m, 12h, 7d, 2026-01-31, 2026-01-31T08:00 and the id of an entry are"
            raise click.BadParameter(told, param_hint="--since") from error
    before = max(round(moment * 1000) - 1, 0)
    return f"{before}-18446744073709551615"


async def _audit(after: str, follow: bool, redis_url: str | None) -> Exit:
    terminal = Terminal()
    with Interrupts(signal.SIGINT, signal.SIGTERM) as interrupts:
        async with api.open(settings=load_settings(redis_url)) as broker:
            if not broker.ledger.audit.on:
                terminal.warn("RUNCAST_AUDIT_MAX_ENTRIES is 0 here: nothing is audited by processes with this setting")
            async for entry in broker.ledger.audit.read(after):
                _write([entry])
                after = entry.id
            if not follow:
                return Exit.OK
            following = asyncio.ensure_future(_follow(broker, after))
            arrived = await interrupts.race(following)
            following.cancel()
            return Exit.INTERRUPTED if arrived is signal.SIGINT else Exit.TERMINATED


async def _follow(broker: Broker, after: str) -> None:
    """Goes on for ever; an outage is waited out."""
    while True:
        try:
            link = await broker.store.link(broker.ledger.audit.key)
            try:
                while True:
                    if entries := await broker.ledger.audit.wait(link, after):
                        _write(entries)
                        after = entries[-1].id
            finally:
                await link.aclose()
        except StoreUnavailable:
            await asyncio.sleep(_PAUSE)


def _write(entries: list[AuditEntry]) -> None:
    sys.stdout.buffer.write(b"".join(entry.line() for entry in entries))
    sys.stdout.buffer.flush()
