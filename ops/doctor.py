"""``runcast doctor``: what is configured, reachable, misconfigured."""

from __future__ import annotations

import asyncio

import click

from ops.checks import all_findings
from ops.exits import Exit
from ops.findings import Finding, State
from ops.options import json_option, load_settings, redis_option
from ops.terminal import Terminal

__all__ = ["doctor"]

_STYLES = {State.OK: "green", State.NOTE: "yellow", State.WRONG: "bold red"}


@click.command()
@json_option
@redis_option
def doctor(as_json: bool, redis_url: str | None) -> Exit:
    """Look at this machine and the store: what is there, what is missing, what is wrong, and what to do.

    Exit code: 0 nothing is wrong (notes are not), 1 something is.
    """
    terminal = Terminal()
    findings = asyncio.run(all_findings(load_settings(redis_url)))
    if as_json:
        for finding in findings:
            terminal.json(
                {"subject": finding.subject, "state": finding.state.value, "found": finding.found, "hint": finding.hint}
            )
    else:
        for finding in findings:
            _print(terminal, finding)
    wrong = sum(1 for f in findings if f.state is State.WRONG)
    if not as_json:
        terminal.styled(f"{wrong} wrong" if wrong else "nothing is wrong", "bold red" if wrong else "bold green")
    return Exit.FAILED if wrong else Exit.OK


def _print(terminal: Terminal, finding: Finding) -> None:
    hint = f"  → {finding.hint}" if finding.hint else ""
    terminal.styled(f"{finding.state.value:<6} {finding.subject:<14} {finding.found}{hint}", _STYLES[finding.state])
