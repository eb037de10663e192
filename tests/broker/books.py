"""A ledger over one store, and runs that end as a test says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from broker.audit_entries import AuditEntry
from broker.budget import Account
from broker.items import Encoded
from broker.ledger import Ledger
from broker.money import dollars, nano_of
from broker.records import RunRecord
from broker.redis import Store
from broker.requests import RunInput, RunRequest
from tests.broker.registry import Registry

__all__ = ["Books", "fence", "lines_of", "nano"]


def nano(amount: str) -> int:
    found = nano_of(amount)
    assert found is not None
    return found


def fence(type_: str = "final", *, cost: str | None = None, tokens: int | None = None, **fields: Any) -> Encoded:
    body: dict[str, Any] = {"ts": 2.0, "component_id": "agent", **fields}
    if cost is not None:
        body["cost"] = {"total": cost, "currency": "USD", "estimated": True}
    if tokens is not None:
        body["usage"] = {"input_tokens": tokens, "output_tokens": 1}
    return Encoded(type_, json.dumps(body, separators=(",", ":")).encode())


class Books(Registry):
    """A registry whose ledger is that of the test; ``settings`` replace those of the store."""

    def __init__(self, store: Store, **settings: Any) -> None:
        store.settings = store.settings.model_copy(update=settings)
        super().__init__(store)

    @property
    def ledger(self) -> Ledger:
        return self.runs.ledger

    async def reserved(self, run_id: str | None = None, *, principal: str = "", model: str = "m") -> str:
        run_id = run_id or f"r-{uuid4().hex}"
        await self.ledger.reserve(run_id, principal, model)
        return run_id

    async def begun(self, run_id: str | None = None, *, principal: str = "", **fields: Any) -> RunRecord:
        run_id = run_id or f"r-{uuid4().hex}"
        record, _ = await self.runs.create(self.asked(**fields), run_id=run_id, principal=principal)
        return await self.runs.claim(record.run_id, record.attempt, "me")

    @staticmethod
    def asked(message: str = "hello", model: str | None = "m", **fields: Any) -> RunRequest:
        return RunRequest(input=RunInput(message=message, model=model), **fields)

    async def over(self, run: RunRecord, end: Encoded) -> RunRecord:
        last = (await self.runs.get(run.run_id)).last
        await self.log.append(run.run_id, "me", run.epoch, last + 1, [end])
        return await self.runs.get(run.run_id)

    async def total(self) -> Account:
        return (await self.ledger.budget()).total

    async def spent(self) -> str:
        return str(dollars((await self.total()).spent).normalize())

    async def audited(self) -> list[AuditEntry]:
        return [entry async for entry in self.ledger.audit.read()]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
