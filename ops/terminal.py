"""Where the command writes: results to stdout, everything else to stderr; decoration on terminals only."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn, TextIO

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Terminal", "drop_output", "printable"]

# C0 without tab and newline, DEL, and C1: what an agent prints must not move the cursor or reprogram the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """``text`` without control characters but tab and newline; CR LF becomes LF."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def drop_output() -> None:
    """Nobody reads stdout any more: let the flush at exit go nowhere instead of raising again."""
    sink = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(sink, stream.fileno())


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """As any other write: rich itself would end the command with 1, and a task of it with a traceback."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Terminal:
    """stdout and stderr of one command. Every write is flushed: a pipe's reader sees lines as they are made."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self.out = _Console(file=self._out, highlight=False, emoji=False, markup=False, soft_wrap=True)
        self.err = _Console(file=self._err, highlight=False, emoji=False, markup=False, soft_wrap=True)

    @property
    def interactive(self) -> bool:
        """stdout is a terminal: somebody watches."""
        return self.out.is_terminal

    @property
    def narrow(self) -> bool:
        """A terminal with room for the essentials only."""
        return self.out.is_terminal and self.out.width < 110

    def write(self, text: str) -> None:
        """Plain bytes of a result, as they are. Lone surrogates become ``?``."""
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()

    def line(self, text: str = "") -> None:
        self.write(text + "\n")

    def json(self, value: Any) -> None:
        """One JSON value on one line."""
        self.line(msgspec.json.encode(value).decode())

    def styled(self, text: str, style: str = "") -> None:
        """A line of a result: coloured on a terminal, plain in a pipe."""
        self.out.print(text, style=style or None)

    def note(self, text: str, style: str = "dim") -> None:
        """A remark that a person may want and a script does not: stderr, and only where that is a terminal."""
        if self.err.is_terminal:
            self.err.print(text, style=style)

    def warn(self, text: str) -> None:
        """A remark that must be seen, in a pipe too: stderr."""
        self.err.print(text, style="yellow")

    def error(self, text: str) -> None:
        self.err.print("runcast: " + printable(text), style="red")

    def table(self, columns: Mapping[str, str], rows: list[list[str]]) -> None:
        """``columns``: heading → style. Aligned and coloured on a terminal; in a pipe tab separated, no heading.

        On a terminal a row is one line: the last column gets the room that the others leave, and is cut there.
        """
        if not self.interactive:
            for row in rows:
                self.line("\t".join(printable(cell).replace("\n", " ").replace("\t", " ") for cell in row))
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading, style in columns.items():
            table.add_column(heading, style=style, overflow="fold")
        shown = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
        widths = [max(map(cell_len, cells)) for cells in zip(list(columns), *shown, strict=True)]
        room = max(self.out.width - sum(widths[:-1]) - 2 * (len(widths) - 1), 8)
        for row in shown:
            last = Text(row[-1])
            last.truncate(room, overflow="ellipsis")
            table.add_row(*row[:-1], last)
        self.out.print(table, soft_wrap=False)
