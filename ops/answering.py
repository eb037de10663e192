"""``runcast input``: what a run asks people, and the answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click
import msgspec

from broker import api
from broker.errors import AlreadyAnswered, Conflict, InvalidRequest, RunEnded
from broker.records import OpenAsk, RunRecord, Settled
from broker.settings import Settings
from gateway.answers import Answered, view
from ops.asks import fields_of, meaning, numbered, shown, what_is_allowed
from ops.exits import Exit
from ops.inline import reads_lines
from ops.options import json_option, load_settings, redis_option
from ops.render import seconds
from ops.terminal import Terminal, printable

__all__ = ["input_"]


@click.command("input")
@click.argument("run_id", metavar="RUN")
@click.argument("answer", required=False)
@click.option("--request", "request_id", metavar="ID", help="Which one, where the run asks several.")
@json_option
@redis_option
def input_(run_id: str, answer: str | None, request_id: str | None, as_json: bool, redis_url: str | None) -> Exit:
    """Answer what RUN asks: an approval (once, session, always, deny; also approve, reject) or a question.

    Without ANSWER what is asked is listed; on a terminal you are asked for the answers then. The first answer counts,
    whoever gives it. Exit code: 0 answered or listed, 2 that is no answer to it, 3 no such run or request, 6 it has
    its answer already, the run has ended, or asks nothing.
    """
    terminal, settings = Terminal(), load_settings(redis_url)
    record = asyncio.run(_record(settings, run_id))
    asks = _chosen(record, request_id)
    if answer is not None:
        request_id = request_id or _only(record, asks).request_id
        _tell(terminal, run_id, asyncio.run(_answer(settings, run_id, request_id, answer)), as_json)
        return Exit.OK
    if as_json:
        for pending in view(record, record.first).pending_input or ():
            if request_id in (None, pending.request_id):
                terminal.json(msgspec.to_builtins(pending))
    elif not asks:
        terminal.note("nothing is asked")
    elif terminal.interactive and reads_lines():
        _interview(terminal, settings, run_id, asks)
    else:
        for ask in asks:
            _list(terminal, ask)
    return Exit.OK


async def _record(settings: Settings, run_id: str) -> RunRecord:
    async with api.open(settings=settings) as broker:
        return await broker.runs.get(run_id)


async def _answer(settings: Settings, run_id: str, request_id: str, answer: str) -> Settled:
    async with api.open(settings=settings) as broker:
        return await broker.runs.answer(run_id, request_id, answer)


def _chosen(record: RunRecord, request_id: str | None) -> list[OpenAsk]:
    return [ask for ask in record.asks if request_id in (None, ask.request_id)]


def _only(record: RunRecord, asks: list[OpenAsk]) -> OpenAsk:
    """The one that an answer without a request is for. Raises ``RunEnded``, ``Conflict``, ``InvalidRequest``."""
    if len(asks) == 1:
        return asks[0]
    if record.ended_:
        raise RunEnded(f"run {record.run_id!r} has ended as {record.status}: it waits for no answer")
    if not asks:
        raise Conflict(f"run {record.run_id!r} is {record.status} and asks nothing")
    ids = "\n".join(f"  --request {ask.request_id}  {' · '.join(shown(fields_of(ask)))[:80]}" for ask in asks)
    raise InvalidRequest(f"run {record.run_id!r} asks {len(asks)} things, say which:\n{ids}", field="request_id")


def _tell(terminal: Terminal, run_id: str, settled: Settled, as_json: bool) -> None:
    if as_json:
        told = Answered(run_id=run_id, request_id=settled.request_id, answer=settled.answer, status="running")
        terminal.json(msgspec.to_builtins(told))
    else:
        terminal.note(f"answered: {printable(settled.answer)}")


def _list(terminal: Terminal, ask: OpenAsk) -> None:
    """In a pipe one line each: id, kind, what is asked, the answers. For a person a few lines."""
    lines = shown(fields_of(ask))
    if not terminal.interactive:
        answers = what_is_allowed(ask.choices, ask.free)
        cells = [ask.request_id, ask.kind, " · ".join(lines), answers]
        terminal.line("\t".join(cell.replace("\t", " ") for cell in cells))
        return
    first, *rest = lines or [""]
    terminal.styled(f"? {ask.kind}: {first}", "bold magenta")
    for line in rest:
        terminal.styled(f"  {line}", "magenta")
    left = ask.expires_at - time.time()
    limit = f" · {seconds(left)} left" if left > 0 else ""
    terminal.styled(f"  {ask.request_id}{limit}", "dim")


def _interview(terminal: Terminal, settings: Settings, run_id: str, asks: list[OpenAsk]) -> None:
    """One after the other. Ctrl-C, or the end of input, leaves the rest as it is."""
    for ask in asks:
        _list(terminal, ask)
        answer = _prompt(ask)
        try:
            _tell(terminal, run_id, asyncio.run(_answer(settings, run_id, ask.request_id, answer)), False)
        except AlreadyAnswered as first:  # of several people one was quicker
            terminal.warn(printable(str(first)))


def _prompt(ask: OpenAsk) -> str:
    def answer_of(line: Any) -> str:
        answer = meaning(str(line), ask)
        if answer is None:
            raise click.UsageError(f"the answers are {what_is_allowed(ask.choices, ask.free)}")
        return answer

    answer: str = click.prompt(numbered(ask.choices, ask.free), value_proc=answer_of, prompt_suffix=" > ")
    return answer
