"""``runcast task``: make a task, watch it, and decide about its steps."""

from __future__ import annotations

import asyncio
import getpass
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from broker import api
from broker.task_decisions import Approve, ApproveUpTo, Cancel, Decision, Edit, Reject, Retry
from broker.task_model import RISKS, status_of
from broker.task_plan import TaskRequest
from ops.exits import Exit, exit_of_status
from ops.follow import Interrupts
from ops.options import json_option, load_settings, redis_option
from ops.task_lines import decision_line, event_lines, step_lines, task_line
from ops.task_request import request_of, steps_of
from ops.terminal import Terminal, printable

__all__ = ["task"]

F = TypeVar("F", bound=Callable[..., Any])
_STYLES = {"waiting": "bold magenta", "halted": "bold red", "completed": "green", "cancelled": "yellow"}


@click.group()
def task() -> None:
    """Tasks: a goal, worked on step by step; people approve. docs/tasks.md has all of it."""


def _decision_options(command: F) -> F:
    command = click.option("--reason", help="Why; kept in the task's history.")(command)
    return click.option("--by", metavar="NAME", help="Who decides.  [default: your login name]")(command)


def _me(by: str | None) -> str:
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


# Making and looking.


@task.command("new")
@click.argument("goal")
@click.option(
    "--plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON file with the steps. Left out: Hermes plans.",
)
@click.option("--runner", default="hermes", show_default=True, help="Who does the steps.")
@click.option("--planner", help="Who makes the plan.  [default: the runner]")
@click.option(
    "--approval-from",
    type=click.Choice(RISKS),
    default="medium",
    show_default=True,
    help="Steps of this risk and above need an approval, unless the plan of --plan says otherwise.",
)
@click.option(
    "--approvals",
    type=click.Choice(("ask", "yolo")),
    default="ask",
    show_default=True,
    help="yolo: the steps run every tool; ask: they ask people before a dangerous one.",
)
@click.option(
    "--max-steps", type=click.IntRange(1, 50), default=12, show_default=True, help="Steps of a plan that is made."
)
@click.option("--model", help="The model of its runs.")
@click.option("--detach", is_flag=True, help="Print the task's id and leave it.")
@click.option("--by", metavar="NAME", help="Who asks.  [default: your login name]")
@json_option
@redis_option
def new(
    goal: str,
    plan: Path | None,
    runner: str,
    planner: str | None,
    by: str | None,
    detach: bool,
    as_json: bool,
    redis_url: str | None,
    **options: Any,
) -> Exit:
    """Make a task for GOAL and watch it; Ctrl-C leaves it alone. Exit code: as of `task watch`."""
    steps = None if plan is None else steps_of(plan)
    given = {"goal": goal, "steps": steps, "runner": runner, "planner": planner or runner, "by": _me(by), **options}
    return asyncio.run(_new(request_of(given), detach, as_json, redis_url))


async def _new(request: TaskRequest, detach: bool, as_json: bool, redis_url: str | None) -> Exit:
    terminal = Terminal()
    async with api.open(settings=load_settings(redis_url)) as broker:
        record, _ = await broker.tasks.create(request)
        if detach:
            terminal.json({"task_id": record.run_id}) if as_json else terminal.line(record.run_id)
            return Exit.OK
        terminal.note(f"task {record.run_id}")
        return await _follow(terminal, broker, record.run_id, as_json)


@task.command("list")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Tasks of a page.")
@click.option("--before", metavar="TOKEN", help="The next page: the token that was printed under the one before.")
@json_option
@redis_option
def list_(limit: int, before: str | None, as_json: bool, redis_url: str | None) -> Exit:
    """List tasks, newest first."""

    async def read() -> tuple[list[dict[str, Any]], str | None]:
        async with api.open(settings=load_settings(redis_url)) as broker:
            return await broker.tasks.page(limit=limit, before=before)

    terminal = Terminal()
    found, more = asyncio.run(read())
    for one in found:
        terminal.json(one) if as_json else terminal.styled(task_line(one), _STYLES.get(one["status"], ""))
    if not found and not as_json:
        terminal.note("no tasks")
    if more and not as_json:
        terminal.note(f"older ones: --before {more}")
    return Exit.OK


@task.command("show")
@click.argument("task_id", metavar="TASK")
@json_option
@redis_option
def show(task_id: str, as_json: bool, redis_url: str | None) -> Exit:
    """Show a task: its plan, where each step stands, and what it waits for."""

    async def read() -> dict[str, Any]:
        async with api.open(settings=load_settings(redis_url)) as broker:
            return await broker.tasks.view(task_id)

    terminal, found = Terminal(), asyncio.run(read())
    if as_json:
        terminal.json(found)
        return Exit.OK
    terminal.styled(task_line(found), _STYLES.get(found["status"], ""))
    if found["halted"]:
        terminal.styled(printable(f"halted: {found['halted']['code']}: {found['halted']['message']}"), "bold red")
    for decision in found["decisions"]:
        terminal.line(decision_line(decision))
    for step in found["steps"]:
        first, *rest = step_lines(step)
        terminal.styled(first, _STYLES.get(step["state"], ""))
        for line in rest:
            terminal.line(line)
    return Exit.OK


@task.command("watch")
@click.argument("task_id", metavar="TASK")
@json_option
@redis_option
def watch(task_id: str, as_json: bool, redis_url: str | None) -> Exit:
    """Follow a task to its end. With --json its events, one a line.

    Exit code: 0 completed, 1 failed, 3 no such task, 5 cancelled, 130 interrupted.
    """
    return asyncio.run(_watch(task_id, as_json, redis_url))


async def _watch(task_id: str, as_json: bool, redis_url: str | None) -> Exit:
    async with api.open(settings=load_settings(redis_url)) as broker:
        await broker.tasks.record(task_id)
        return await _follow(Terminal(), broker, task_id, as_json)


async def _follow(terminal: Terminal, broker: api.Broker, task_id: str, as_json: bool) -> Exit:
    with Interrupts() as interrupts:
        following = asyncio.create_task(_told(terminal, broker, task_id, as_json))
        if await interrupts.race(following) is None:
            return following.result()
        following.cancel()
        await asyncio.wait({following})
    terminal.note(f"the task goes on: runcast task watch {task_id}")
    return Exit.INTERRUPTED


async def _told(terminal: Terminal, broker: api.Broker, task_id: str, as_json: bool) -> Exit:
    known = 0
    async for entry in broker.stream(task_id):
        if entry.type != "event" or not str(entry.fields.get("name")).startswith("task."):
            continue
        fields = entry.fields
        if fields["name"] != "task.resumed" and fields["version"] <= known:
            continue
        known = max(known, fields["version"])
        if as_json:
            terminal.json({"seq": entry.seq, **fields})
        else:
            for line in event_lines(fields):
                terminal.styled(line, _STYLES.get(fields["task"]["status"], ""))
    return exit_of_status((await broker.runs.get(task_id)).status)


# Deciding.


def _decide(task_id: str, decision: Decision, step: int | None, as_json: bool, redis_url: str | None) -> Exit:
    async def decide() -> Any:
        async with api.open(settings=load_settings(redis_url)) as broker:
            return await broker.tasks.decide(task_id, decision.change(step, "", time.time()))

    terminal, after = Terminal(), asyncio.run(decide())
    steps = [{"n": s.n, "state": s.state, "revision": s.revision} for s in after.steps]
    if as_json:
        terminal.json({"task_id": task_id, "status": status_of(after), "steps": steps})
    else:
        changed = steps[step - 1]["state"] if step is not None else status_of(after)
        terminal.note(f"{'task' if step is None else f'step {step}'}: {changed}")
    return Exit.OK


@task.command("approve")
@click.argument("task_id", metavar="TASK")
@click.argument("step", type=int, required=False)
@click.option("--up-to", type=click.Choice(RISKS), help="Instead of one step: all up to this risk.")
@click.option("--revision", type=int, help="Only if the step is still of this revision.")
@_decision_options
@json_option
@redis_option
def approve(
    task_id: str,
    step: int | None,
    up_to: Any,
    revision: int | None,
    reason: str | None,
    by: str | None,
    as_json: bool,
    redis_url: str | None,
) -> Exit:
    """Approve STEP of a task, or every step up to a risk."""
    if step is None and up_to is None:
        raise click.UsageError("give a step, or --up-to")
    if step is not None and up_to is not None:
        raise click.UsageError("give a step or --up-to, not both")
    decision: Decision = (
        Approve(reason=reason, by=_me(by), revision=revision)
        if up_to is None
        else ApproveUpTo(up_to=up_to, reason=reason, by=_me(by))
    )
    return _decide(task_id, decision, step, as_json, redis_url)


@task.command("reject")
@click.argument("task_id", metavar="TASK")
@click.argument("step", type=int)
@click.option("--go-on", is_flag=True, help="The task goes on without the step; left out, it halts there.")
@click.option("--revision", type=int, help="Only if the step is still of this revision.")
@_decision_options
@json_option
@redis_option
def reject(
    task_id: str,
    step: int,
    go_on: bool,
    revision: int | None,
    reason: str | None,
    by: str | None,
    as_json: bool,
    redis_url: str | None,
) -> Exit:
    """Reject STEP of a task; --reason is needed."""
    then: Any = "continue" if go_on else "halt"
    decision = Reject(reason=reason, by=_me(by), revision=revision, then=then)
    return _decide(task_id, decision, step, as_json, redis_url)


@task.command("edit")
@click.argument("task_id", metavar="TASK")
@click.argument("step", type=int)
@click.option("--title", help="What the step is called.")
@click.option("--instruction", help="What it is told to do.")
@click.option("--risk", type=click.Choice(RISKS), help="A higher one may make it need an approval.")
@click.option("--approval/--no-approval", default=None, help="Whether a person must approve it.")
@click.option("--revision", type=int, help="Only if the step is still of this revision.")
@_decision_options
@json_option
@redis_option
def edit(task_id: str, step: int, by: str | None, as_json: bool, redis_url: str | None, **fields: Any) -> Exit:
    """Change STEP of a task, before it is approved, or after it failed or was rejected."""
    return _decide(task_id, Edit(by=_me(by), **fields), step, as_json, redis_url)


@task.command("retry")
@click.argument("task_id", metavar="TASK")
@_decision_options
@json_option
@redis_option
def retry(task_id: str, reason: str | None, by: str | None, as_json: bool, redis_url: str | None) -> Exit:
    """Have a halted task go on."""
    return _decide(task_id, Retry(reason=reason, by=_me(by)), None, as_json, redis_url)


@task.command("cancel")
@click.argument("task_id", metavar="TASK")
@_decision_options
@json_option
@redis_option
def cancel(task_id: str, reason: str | None, by: str | None, as_json: bool, redis_url: str | None) -> Exit:
    """End a task: what runs is stopped, what waits is not begun."""
    return _decide(task_id, Cancel(reason=reason, by=_me(by)), None, as_json, redis_url)
