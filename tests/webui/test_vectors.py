"""The resume decisions that were recorded of the model system and corrected: each over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from broker.api import Broker
from broker.items import Final, MessageDelta
from gateway.webui.resume import Action, Asked, Log, resolve
from tests.conftest import missing
from tests.gateways import GatewayProcess, say, writing
from tests.webui.wire import CLOSING, blocks_of, chat, numbers, trim

VECTORS = Path(__file__).parents[3] / "shared" / "fixtures" / "webui" / "resume_vectors.json"
RUN = "R"


def _known() -> dict[str, Any]:
    if not VECTORS.exists():
        if os.environ.get("CI") == "true":
            raise FileNotFoundError(VECTORS)
        return {"states": {}, "rows": []}
    known: dict[str, Any] = json.loads(VECTORS.read_text())
    return known


KNOWN = _known()
STATES: dict[str, Any] = KNOWN["states"]


def test_the_vectors_are_there():
    if not KNOWN["rows"]:
        missing("the recorded resume vectors are not on this machine")
    assert len(KNOWN["rows"]) == 159


@pytest.mark.parametrize("row", KNOWN["rows"], ids=str)
def test_the_decision(row: dict[str, Any]):
    state = STATES[row["state"]]
    asked = Asked(**row["query"], header=row["last_event_id"] or "")
    resume = resolve(asked, Log(RUN, state["first"], state["last"], state["terminal"] is not None))
    assert resume.position.seq == row["resolved_after_seq"]
    assert resume.position.requested == row["resume_requested"]
    assert (resume.action is Action.RECOVER) == row["expect"]["recovery"]
    if resume.action is Action.FOLLOW:
        assert [*range(resume.after + 1, state["last"] + 1), *state["later"]] == row["expect"]["seqs"]


@pytest.mark.parametrize("state", STATES)
async def test_over_http(state: str, gateway: GatewayProcess, broker: Broker):
    """All rows of a state at once on one run: its later items come when every viewer has what there is."""
    rows = [row for row in KNOWN["rows"] if row["state"] == state]
    stands = STATES[state]
    async with writing(broker) as p:
        for seq in range(1, stands["last"] + 1):
            await p.publish(Final() if seq == stands["terminal"] else MessageDelta(text=f"t{seq} "))
        await p.flush()
        if stands["first"] > 1:
            await trim(broker, p.run_id, stands["first"])
        streams = [await chat(gateway, p.run_id, _mine(row, p.run_id), header=_header(row, p.run_id)) for row in rows]
        for stream, row in zip(streams, rows, strict=True):
            present = [seq for seq in row["expect"]["seqs"] if seq <= stands["last"]]
            if present and not stands["terminal"]:
                await _has(stream, p.run_id, present[-1])
        if stands["later"]:
            await say(p, *(f"t{seq} " for seq in stands["later"][:-1]), end=True)
        for stream, row in zip(streams, rows, strict=True):
            blocks = blocks_of(await stream.body())
            _compare(row, [b for b in blocks if b.comment is None], p.run_id)
            stream.leave()


def _mine(row: dict[str, Any], run_id: str) -> dict[str, str]:
    return {name: _named(value, run_id) for name, value in row["query"].items()}


def _header(row: dict[str, Any], run_id: str) -> str | None:
    return None if row["last_event_id"] is None else _named(row["last_event_id"], run_id)


def _named(value: str, run_id: str) -> str:
    return f"{run_id}:{value[2:]}" if value.startswith("R:") else value


async def _has(stream: Any, run_id: str, seq: int) -> None:
    """Read on until the item of that seq has come."""
    async with asyncio.timeout(30):
        while f"id: {run_id}:{seq}\n".encode() not in stream.wire:
            await stream.part()


def _compare(row: dict[str, Any], blocks: list[Any], run_id: str) -> None:
    expect = row["expect"]
    assert numbers(blocks, run_id) == expect["seqs"], row
    assert expect["closes"]
    closing = [b for b in blocks if b.event in CLOSING]
    assert len(closing) == 1, row
    assert blocks[-1] is closing[0]
    assert closing[0].retry == 3_600_000
    if expect["recovery"]:
        assert len(blocks) == 1
        assert (closing[0].event, closing[0].data["recovery_control"], closing[0].id) == ("apperror", True, None)
        assert closing[0].data["type"] == "interrupted"
    else:
        assert [b.event for b in blocks[-3:]] == ["done", "metering", "stream_end"]
        assert closing[0].id == f"{run_id}:{expect['seqs'][-1]}"
        assert [b.id for b in blocks[-3:-1]] == [None, None]
