"""Chat streams as clients of the WebUI see them: what they ask for, and what comes, to the byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from broker.api import Broker
from tests.gateways import GatewayProcess, Response

__all__ = [
    "CLOSING",
    "Block",
    "blocks_of",
    "chat",
    "closed",
    "ids_of",
    "numbers",
    "target",
    "text_of",
    "trim",
    "until_wire",
]

CLOSING = ("stream_end", "cancel", "apperror")


class Block(NamedTuple):
    """One block. ``event`` is empty where it has none; ``data`` is decoded."""

    id: str | None
    event: str
    data: Any
    retry: int | None = None
    comment: str | None = None


def blocks_of(wire: bytes, *, cut: bool = False) -> list[Block]:
    """Bytes → blocks. Fails at anything that is no whole block of known lines; ``cut``: but for the last one."""
    *whole, rest = wire.decode().split("\n\n")
    assert cut or not rest, f"it ends within a block: {rest!r}"
    return [_block(text) for text in whole]


def _block(text: str) -> Block:
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        assert colon, f"no line of a block: {line!r} in {text!r}"
        assert name not in fields, f"{name!r} twice in {text!r}"
        fields[name] = value.removeprefix(" ")
    assert fields.keys() <= {"id", "event", "data", "retry", ""}, text
    assert ("event" in fields) == ("data" in fields), text
    assert fields.get("event") != "error", text
    data = json.loads(fields["data"]) if "data" in fields else None
    retry = int(fields["retry"]) if "retry" in fields else None
    return Block(fields.get("id"), fields.get("event", ""), data, retry, fields.get(""))


def target(run_id: str, query: Mapping[str, str] | None = None) -> str:
    return "/api/chat/stream?" + urlencode({"stream_id": run_id, **(query or {})})


async def chat(
    gateway: GatewayProcess | int,
    run_id: str,
    query: Mapping[str, str] | None = None,
    *,
    header: str | None = None,
    version: str = "1.1",
    method: str = "GET",
) -> Response:
    """A chat stream, its head read. ``header``: the ``Last-Event-ID``."""
    port = gateway if isinstance(gateway, int) else gateway.port
    headers = [] if header is None else [("Last-Event-ID", header)]
    return await Response.open(port, target(run_id, query), headers=headers, version=version, method=method)


async def closed(
    gateway: GatewayProcess | int,
    run_id: str,
    query: Mapping[str, str] | None = None,
    *,
    header: str | None = None,
    timeout: float = 30.0,
) -> list[Block]:
    """A chat stream to its proper end."""
    async with await chat(gateway, run_id, query, header=header) as stream:
        assert stream.status == 200
        return blocks_of(await stream.body(timeout))


def ids_of(blocks: Sequence[Block]) -> list[str]:
    return [block.id for block in blocks if block.id is not None]


def numbers(blocks: Sequence[Block], run_id: str) -> list[int]:
    """The seqs of the blocks that are items, in the order in which they came. Each id must be one of the run."""
    for id_ in ids_of(blocks):
        assert id_.startswith(f"{run_id}:"), id_
    return [int(id_.rpartition(":")[2]) for id_ in ids_of(blocks)]


def text_of(blocks: Sequence[Block]) -> str:
    return "".join(block.data["text"] for block in blocks if block.event == "token")


async def until_wire(stream: Response, part: bytes, timeout: float = 30.0) -> None:
    """Read on until that has come."""
    async with asyncio.timeout(timeout):
        while part not in stream.wire:
            assert not stream.complete, stream.wire
            await stream.part()


async def trim(broker: Broker, run_id: str, first: int) -> None:
    """What retention does at the head of a log: ``first`` is the first seq that is kept."""
    await broker.store.call("XTRIM", broker.keys.items(run_id), "MINID", f"{first}-0")
    await broker.store.call("HSET", broker.keys.run(run_id), "first", first)
