"""``runcast merge``: a recorded provider stream → its merged message. Needs no store."""

from __future__ import annotations

from io import BufferedReader
from typing import Any

import click
import msgspec

from broker.items import Item, encode, scrub
from ops.exits import Exit
from ops.terminal import Terminal
from workers.merged import MergedStream
from workers.providers import ADAPTERS, UnknownApi

__all__ = ["merge"]

_CHUNK = 64 * 1024


@click.command()
@click.option(
    "--api", required=True, type=click.Choice(sorted(ADAPTERS)), metavar="NAME", help=", ".join(sorted(ADAPTERS))
)
@click.option("--items", "as_items", is_flag=True, help="Print the items instead, one a line, as import reads them.")
@click.option("--snapshots", is_flag=True, help="The provider sends each text whole, and longer, every time.")
@click.argument("file", type=click.File("rb"), default="-")
def merge(api: str, as_items: bool, snapshots: bool, file: BufferedReader) -> Exit:
    """Merge FILE, a recorded response of a model provider, and print one JSON object.

    FILE has the bytes as they came: server-sent events, NDJSON, JSON lines or a JSON array; "-", or none, is stdin.
    Exit code: 0, or 1 where the stream ends in an error; what came before it is printed, with the error.
    """
    try:
        stream = MergedStream(api, snapshots=snapshots)
    except UnknownApi as error:
        raise click.UsageError(str(error)) from None
    terminal = Terminal()
    while chunk := file.read1(_CHUNK):  # what there is: a pipe may be slow
        _print(terminal, stream.feed(chunk), as_items)
    _print(terminal, stream.close(), as_items)
    if not as_items:
        _print_result(terminal, stream.result())
    elif stream.error is not None:
        terminal.error(f"{stream.error.code}: {stream.error.message}")
    return Exit.OK if stream.error is None else Exit.FAILED


def _print(terminal: Terminal, items: list[Item], wanted: bool) -> None:
    if wanted and items:
        terminal.write("".join(map(_line, items)))


def _line(item: Item) -> str:
    """As ``runcast export`` writes an item, but for the time, which nobody knows."""
    stored = encode(item)
    fields = msgspec.json.decode(stored.data)
    fields.pop("ts")
    head = {"type": stored.type, "component_id": fields.pop("component_id")}
    return msgspec.json.encode({**head, "data": fields}).decode() + "\n"


def _print_result(terminal: Terminal, result: dict[str, Any]) -> None:
    """On one line for programs, spread out for eyes."""
    text = msgspec.json.encode(scrub(result))
    terminal.line((msgspec.json.format(text, indent=2) if terminal.interactive else text).decode())
