"""``runcast budget``: what was spent and is held back today, or on another day, and the caps."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

import click

from broker import api
from broker.budget import Account, Budget
from broker.money import shown
from ops.exits import Exit
from ops.options import json_option, load_settings, redis_option
from ops.terminal import Terminal, printable

__all__ = ["budget"]

_EPOCH = date(1970, 1, 1)
_ALL = "all together"


@click.command()
@click.option("--day", metavar="YYYY-MM-DD", help="Another day (UTC) than today.")
@json_option
@redis_option
def budget(day: str | None, as_json: bool, redis_url: str | None) -> Exit:
    """What runs cost today (UTC), what is held back for those that go on, and the caps, in US dollars.

    The caps are those of this command's own settings: give it the gateways'.
    """
    return asyncio.run(_budget(_number(day), as_json, redis_url))


def _number(day: str | None) -> int | None:
    try:
        return None if day is None else (date.fromisoformat(day) - _EPOCH).days
    except ValueError as error:
        raise click.BadParameter(f"{day!r} is no day: it is written 2026-01-31", param_hint="--day") from error


async def _budget(day: int | None, as_json: bool, redis_url: str | None) -> Exit:
    terminal = Terminal()
    async with api.open(settings=load_settings(redis_url)) as broker:
        books = await broker.ledger.budget(day)
    if as_json:
        terminal.json(_described(books))
        return Exit.OK
    terminal.note(f"{books.day} (UTC), US dollars")
    columns = {"who": "bold", "spent": "", "reserved": "", "cap": "", "runs": "", "cost unknown": "", "refused": ""}
    rows = [_row(_ALL, books.total, books.caps.total)]
    rows += [_row(_name(who), account, books.caps.principal) for who, account in books.principals.items()]
    terminal.table(columns, rows)
    if not books.caps.set:
        terminal.note("no cap is set: RUNCAST_COST_CAP, RUNCAST_COST_CAP_PRINCIPAL")
    return Exit.OK


def _name(principal: str) -> str:
    return printable(principal) or "(nobody named)"


def _row(who: str, account: Account, cap: int | None) -> list[str]:
    limit = "" if cap is None else shown(cap)
    counts = (account.runs, account.unknown, account.refused)
    return [who, shown(account.spent), shown(account.reserved), limit, *map(str, counts)]


def _described(books: Budget) -> dict[str, Any]:
    caps = books.caps
    principals = {who: _told(account, caps.principal) for who, account in books.principals.items()}
    return {"day": books.day.isoformat(), **_told(books.total, caps.total), "principals": principals}


def _told(account: Account, cap: int | None) -> dict[str, Any]:
    money = {"spent": shown(account.spent), "reserved": shown(account.reserved)}
    counts = {name: value for name, value in account._asdict().items() if name not in money}
    return {**money, "cap": None if cap is None else shown(cap), **counts}
