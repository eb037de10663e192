"""``runcast artifacts``: the files that a run left; and files that ``runcast run`` gives one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from broker import api
from broker.artifact_names import shown
from broker.errors import InvalidRequest
from gateway.answers import ArtifactPage
from gateway.files import find, listing
from ops.exits import Exit
from ops.options import json_option, load_settings, redis_option
from ops.terminal import Terminal

__all__ = ["artifacts", "given"]


def given(values: Sequence[str], most: int) -> list[dict[str, Any]] | None:
    """``--artifact``: a URL, or a file of this machine with up to ``most`` bytes → ``input.artifacts``.

    Raises ``InvalidRequest`` where a file cannot be read.
    """
    return [_given(value, most) for value in values] or None


def _given(value: str, most: int) -> dict[str, Any]:
    name, equals, source = value.partition("=")
    if not equals or "/" in name or ":" in name:
        name, source = "", value
    if source.startswith(("http://", "https://")):
        path = source.partition("?")[0].partition("#")[0].rstrip("/")
        return {"name": name or path.rpartition("/")[2], "url": source}
    try:
        with open(source, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InvalidRequest(f"{source!r} cannot be read: {error.strerror}", field="--artifact") from None
    return {"name": name or os.path.basename(source), "content_base64": base64.b64encode(content).decode()}


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("name", required=False)
@click.option("--output", "-o", type=click.Path(dir_okay=False), metavar="FILE", help="Write it there, not to stdout.")
@json_option
@redis_option
def artifacts(run_id: str, name: str | None, output: str | None, as_json: bool, redis_url: str | None) -> Exit:
    """The files that RUN left: a list, or with NAME the content of one.

    Exit code: 0 done, 3 no such run or file, 4 the store is away.
    """
    if name is None:
        return asyncio.run(_list(run_id, as_json, redis_url))
    if output is None and sys.stdout.isatty():
        message = "what an agent made is not written to a terminal: use --output FILE, or a pipe"
        raise InvalidRequest(message, field="--output")
    return asyncio.run(_get(run_id, name, output, redis_url))


async def _list(run_id: str, as_json: bool, redis_url: str | None) -> Exit:
    terminal = Terminal()
    async with api.open(settings=load_settings(redis_url)) as broker:
        page = listing(await broker.runs.get(run_id))
    if as_json:
        terminal.json(msgspec.to_builtins(page))
        return Exit.OK
    rows = [[entry.name, str(entry.size), entry.type, entry.sha256] for entry in page.artifacts]
    if rows:
        terminal.table({"name": "bold", "size": "", "type": "", "sha256": "dim"}, rows)
    else:
        terminal.note("none")
    _say_skipped(terminal, page)
    return Exit.OK


def _say_skipped(terminal: Terminal, page: ArtifactPage) -> None:
    for left in page.skipped:
        terminal.warn(f"left out: {shown(left.name) or 'more'} ({left.reason})")
    if (more := page.skipped_count - len(page.skipped)) > 0:
        terminal.warn(f"and {more} more")


async def _get(run_id: str, name: str, output: str | None, redis_url: str | None) -> Exit:
    async with api.open(settings=load_settings(redis_url)) as broker:
        entry = find(await broker.runs.get(run_id), name)
        key = broker.artifacts.of_run(run_id, entry.sha256)
        with _written(output) as file:
            async for piece in broker.artifacts.read(key, 0, entry.size):
                file.write(piece)
    return Exit.OK


@contextlib.contextmanager
def _written(output: str | None) -> Iterator[BinaryIO]:
    """stdout, or a file: whole or not at all, so what has that name is replaced once the other is complete."""
    if output is None:
        yield sys.stdout.buffer
        return
    partial = Path(f"{output}.part")
    with partial.open("xb") as file:
        try:
            yield file
            partial.replace(output)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
