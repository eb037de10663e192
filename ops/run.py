"""``runcast run`` and ``runcast tail``: submit and follow.

Ctrl-C leaves the run alone: other screens may watch it. The first one detaches and says how to go on; with
``--cancel-on-interrupt`` it cancels the run and waits for its fence, and a second one detaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from broker import api
from broker.errors import InvalidRequest, RunEnded
from broker.items import Mode
from broker.requests import RunRequest
from broker.staging import staged
from ops.artifacts import given as given_artifacts
from ops.exits import Exit, exit_of_status
from ops.follow import Follower, Interrupts, hint_after
from ops.inline import Inline, reads_lines
from ops.options import Number, json_option, load_settings, modes_option, redis_option
from ops.render import JsonLines, PlainText, Renderer, Watched
from ops.terminal import Terminal

__all__ = ["command_name", "renderer_for", "run", "tail"]

_HINT_AFTER = 3.0


def command_name() -> str:
    """How this command was called, for hints that can be pasted: ``runcast``, or the path it was started by."""
    called = sys.argv[0]
    if shutil.which("runcast") or not called.endswith("runcast"):
        return "runcast"
    return called


def renderer_for(terminal: Terminal, run_id: str, *, as_json: bool, modes: Mode | None) -> Renderer:
    """JSON lines if asked for; what ``modes`` names if they were named or somebody watches; else the answer alone."""
    if as_json:
        return JsonLines(terminal, run_id)
    if terminal.interactive or modes is not None:
        return Watched(terminal, answer=modes is None or bool(modes & (Mode.MESSAGES | Mode.EVENTS | Mode.FINAL)))
    return PlainText(terminal)


def _pairs(values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r}: NAME=VALUE is needed", param_hint="--metadata")
        pairs[name] = text
    return pairs


def _prompt(text: str) -> str:
    """``-`` reads the prompt from stdin."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the prompt on stdin is not UTF-8: {error}", field="input.message") from None


@click.command()
@click.argument("prompt")
@click.option(
    "--runner", default="hermes", show_default=True, help="Who runs it: hermes, scripted, or another that is installed."
)
@click.option("--model", help="Model, where the runner lets one choose.")
@click.option("--provider", help="Provider, where the runner lets one choose.")
@click.option("--toolsets", metavar="A,B", help="Tool sets, comma separated.")
@click.option("--max-turns", type=click.IntRange(min=1), help="Model calls at most.")
@click.option(
    "--approvals",
    type=click.Choice(["yolo", "ask"]),
    help="yolo: run every tool; ask: ask people before a dangerous one.  [default: yolo]",
)
@click.option("--artifact", multiple=True, metavar="[NAME=]FILE|URL", help="A file for its workspace; may be repeated.")
@click.option("--session", "session_id", metavar="ID", help="Conversation that this run goes on.")
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="Kept with the run; may be repeated.")
@click.option(
    "--on-worker-lost", type=click.Choice(["fail", "retry"]), help="When the worker is lost.  [default: fail]"
)
@click.option("--deadline", type=Number(min=0, min_open=True), metavar="SECONDS", help="Stop it after so long.")
@click.option("--idempotency-key", metavar="KEY", help="The same key and request again: the same run.")
@click.option("--run-id", metavar="ID", help="Id of the run.  [default: made here]")
@click.option("--detach", is_flag=True, help="Print the run's id and leave it running.")
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C cancels the run; without it Ctrl-C only leaves.")
@modes_option
@json_option
@redis_option
def run(prompt: str, as_json: bool, redis_url: str | None, modes: Mode | None, **options: Any) -> Exit:
    """Submit PROMPT (- reads stdin) and follow the run.

    On a terminal: text as it comes, tools as they start and end, usage at the end; what the run asks is answered by
    typing. In a pipe: the answer's text; with --json one item a line. Exit code: 0 completed, 1 failed, 5 cancelled,
    130 left with Ctrl-C.
    """
    given = {
        "model": options["model"],
        "provider": options["provider"],
        "toolsets": [t.strip() for t in options["toolsets"].split(",") if t.strip()] if options["toolsets"] else None,
        "max_turns": options["max_turns"],
        "approvals": options["approvals"],
        "artifacts": given_artifacts(options["artifact"], load_settings(redis_url).inbound_bytes),
    }
    more = {
        "session_id": options["session_id"],
        "metadata": _pairs(options["metadata"]) or None,
        "on_worker_lost": options["on_worker_lost"],
        "deadline_s": options["deadline"],
    }
    body = {
        "runner": options["runner"],
        "input": {"message": _prompt(prompt), **{k: v for k, v in given.items() if v is not None}},
        **{k: v for k, v in more.items() if v is not None},
    }
    request = request_of(body)
    return asyncio.run(_submit(request, redis_url, as_json, modes, options))


def request_of(body: dict[str, Any]) -> RunRequest:
    """The body of a request → ``RunRequest``. Raises ``InvalidRequest`` naming the field."""
    try:
        return msgspec.convert(body, RunRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


async def _submit(
    request: RunRequest, redis_url: str | None, as_json: bool, modes: Mode | None, options: dict[str, Any]
) -> Exit:
    terminal = Terminal()
    settings = load_settings(redis_url)
    with Interrupts() as interrupts:
        async with api.open(settings=settings) as broker:
            request = await staged(request, broker.artifacts, settings)
            record, created = await broker.runs.create(
                request, run_id=options["run_id"], idempotency_key=options["idempotency_key"]
            )
            if options["detach"]:
                return await _detached(terminal, broker, record.run_id, record.status, as_json)
            if not created:
                terminal.note(f"this request was made before: following {record.run_id}")
            session = _Session(terminal, broker, record.run_id, as_json, modes)
            terminal.note(record.run_id)
            return await session.follow(interrupts, cancel=options["cancel_on_interrupt"])


async def _detached(terminal: Terminal, broker: api.Broker, run_id: str, status: str, as_json: bool) -> Exit:
    if as_json:
        token = await broker.runs.cancel_token(run_id)
        terminal.json({"run_id": run_id, "status": status, "cancel_token": token})
    else:
        terminal.line(run_id)
        terminal.note(f"follow it: {command_name()} tail {run_id}")
    return Exit.OK


class _Session:
    """One command that follows one run."""

    def __init__(self, terminal: Terminal, broker: api.Broker, run_id: str, as_json: bool, modes: Mode | None) -> None:
        self._terminal, self._broker, self._run_id = terminal, broker, run_id
        renderer = renderer_for(terminal, run_id, as_json=as_json, modes=modes)
        reading = terminal.interactive and reads_lines()
        self._inline = None if as_json else Inline(terminal, broker, run_id, command=command_name(), reading=reading)
        seen = self._inline.see if self._inline is not None else None
        self._follower = Follower(broker, run_id, renderer, modes=modes, seen=seen)

    async def follow(
        self, interrupts: Interrupts, *, cancel: bool, after: int | str | None = None, compact: bool = False
    ) -> Exit:
        following = asyncio.create_task(self._follower.follow(after=after, compact=compact))
        if self._inline is not None and after is not None:
            self._inline.look()
        try:
            async with self._inline or contextlib.nullcontext():
                return await self._attend(following, interrupts, cancel)
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def _attend(self, following: asyncio.Task[str], interrupts: Interrupts, cancel: bool) -> Exit:
        with hint_after(_HINT_AFTER, self._hint_worker):
            while await interrupts.race(following) is not None:
                if not cancel:
                    return await self._leave(following)
                cancel = False
                await self._cancel()
        self._follower.close()
        return exit_of_status(following.result())

    async def _cancel(self) -> None:
        self._terminal.note("cancelling; Ctrl-C again leaves at once", "yellow")
        with contextlib.suppress(RunEnded):
            await self._broker.runs.cancel(self._run_id)

    async def _leave(self, following: asyncio.Task[str]) -> Exit:
        following.cancel()
        await asyncio.wait({following})
        self._follower.close()
        name, last = command_name(), self._follower.last
        self._terminal.note(f"left; {self._run_id} goes on", "yellow")
        self._terminal.note(f"  follow it   {name} tail {self._run_id} --from {last + 1}")
        self._terminal.note(f"  stop it     {name} cancel {self._run_id}")
        return Exit.INTERRUPTED

    async def _hint_worker(self) -> None:
        """A run that nobody takes looks like one that hangs."""
        if self._follower.last == 0 and (await self._broker.runs.get(self._run_id)).status == "queued":
            where = self._broker.store.shown
            self._terminal.warn(f"{self._run_id} waits for a worker at {where}; start one: {command_name()} worker")


class Position(click.ParamType[int | str]):
    """``17``: item 17 first. ``now``: what comes. ``run_id:17``: a cursor, what follows item 17."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        if text == "now" or ":" in text:
            return text
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            self.fail(f"{text[:40]!r}: a seq (1 is the first), “now” or a cursor run_id:seq is needed", param, ctx)
        return max(int(text) - 1, 0)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--from", "after", type=Position(), metavar="SEQ", help="First item to show; or now; or a cursor, RUN:SEQ."
)
@click.option("--compact", is_flag=True, help="Join adjacent deltas while catching up.")
@modes_option
@json_option
@redis_option
def tail(
    run_id: str, after: int | str | None, compact: bool, modes: Mode | None, as_json: bool, redis_url: str | None
) -> Exit:
    """Follow RUN from its start (or --from) to its end; an ended run is shown whole.

    Exit code: that of the run (0 completed, 1 failed, 5 cancelled), 130 after Ctrl-C. Leaving never cancels the run.
    """
    return asyncio.run(_tail(run_id, after, compact, modes, as_json, redis_url))


async def _tail(
    run_id: str, after: int | str | None, compact: bool, modes: Mode | None, as_json: bool, redis_url: str | None
) -> Exit:
    terminal = Terminal()
    with Interrupts() as interrupts:
        async with api.open(settings=load_settings(redis_url)) as broker:
            if after == "now":
                record = await broker.runs.get(run_id)
                after = max(record.last - 1, 0) if record.ended_ else record.last
            session = _Session(terminal, broker, run_id, as_json, modes)
            return await session.follow(interrupts, cancel=False, after=after, compact=compact)
