"""The ``runcast`` command: one group, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import click

from broker.errors import RuncastError
from ops.exits import Exit, exit_of_error
from ops.terminal import Terminal, drop_output

__all__ = ["cli", "main"]

# Name → module, attribute, summary. A command's module is imported when it is used: `runcast --help` is quick.
_COMMANDS = {
    "up": ("ops.up", "up", "Everything on this machine: store, worker, gateway, page, and a run to look at."),
    "serve": ("ops.services", "serve", "Serve runs over HTTP and SSE."),
    "worker": ("ops.services", "worker", "Take runs from the queue and execute them."),
    "run": ("ops.run", "run", "Submit a prompt and follow the run."),
    "tail": ("ops.run", "tail", "Follow a run to its end."),
    "replay": ("ops.replay", "replay", "Show a stored run again, or publish it again as a new one."),
    "runs": ("ops.registry", "runs", "List runs, newest first."),
    "show": ("ops.registry", "show", "What is known of a run."),
    "input": ("ops.answering", "input_", "Answer what a run asks: approvals and questions."),
    "task": ("ops.task", "task", "Tasks: a goal, worked on step by step, approved by people."),
    "cancel": ("ops.registry", "cancel", "Stop a run."),
    "artifacts": ("ops.artifacts", "artifacts", "The files that a run left: a list, or one of them."),
    "export": ("ops.transfer", "export_run", "A run as lines of JSON, to stdout."),
    "import": ("ops.transfer", "import_run", "Lines of JSON from stdin as a new run, published as they arrive."),
    "merge": ("ops.merge", "merge", "A recorded response of a model provider as one merged message."),
    "budget": ("ops.budget", "budget", "What runs cost today, and the caps."),
    "audit": ("ops.audit", "audit", "Who did what, when, and what it cost, as lines of JSON."),
    "plan": ("ops.plan", "plan", "What a load needs, and what would break first."),
    "doctor": ("ops.doctor", "doctor", "What is configured, reachable, misconfigured."),
}


class _ReaderLeft(Exception):
    """Nobody reads stdout any more."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would make it exit code 1
            raise _ReaderLeft from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--redis", "redis_url", metavar="URL", help="The store; may stand after the command's name too.")
@click.version_option(version("runcast"), "--version", prog_name="runcast")
def cli(redis_url: str | None) -> None:
    """One agent run, many screens, nothing lost.

    Exit codes: 0 ok · 1 failed · 2 usage · 3 not found · 4 the store is away · 5 cancelled · 6 the state forbids it ·
    130 interrupted · 141 the reader of stdout went away · 143 ended by SIGTERM.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits; never shows a traceback for what can be expected."""
    sys.exit(_guarded(lambda: cli.main(args=arguments, prog_name="runcast", standalone_mode=False)))


def _guarded(work: Callable[[], Any]) -> int:
    try:
        result = work()
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else Exit.OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return Exit.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except RuncastError as error:
        Terminal().error(str(error))
        return exit_of_error(error)
    except (_ReaderLeft, BrokenPipeError):
        drop_output()
        return Exit.BROKEN_PIPE
    except OSError as error:
        Terminal().error(str(error))
        return Exit.FAILED


if __name__ == "__main__":
    main()
