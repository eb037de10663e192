"""The audit: an append-only stream of what was done, by whom, and what it cost. Capped by number and age.

A run's entry is written by the script that settles it, in one step with the books, so there is exactly one for each run
that ends (``broker.ledger``). What else is noted (a refusal, a cancel, an answer, a download) is noted once by whoever
did it, and not at all where the store is away just then: no request fails because it could not be audited.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from broker import metrics
from broker.audit_entries import AuditEntry, encode_audit, parse_audit
from broker.errors import RuncastError
from broker.redaction import Redactor, secrets_of
from broker.redis import Link, Store

__all__ = ["KINDS", "Audit"]

_log = logging.getLogger("runcast.audit")

KINDS = ("run", "cost_cap", "cancel", "input", "attempt", "artifact")
"""``run``: it has ended. ``cost_cap``: the first refusal of a principal and day. ``attempt``: a lost worker's run
begins anew. The others: somebody stopped a run, answered what it asked, fetched a file of it."""
_PAGE = 500
_GRACE = 2.0


class Audit:
    """The audit of one store. ``on``: there is one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.key = store.keys.ledger("audit")
        self._redact = Redactor(secrets_of(store.settings))
        self.on = store.settings.audit_max_entries > 0

    def encoded(self, said: Mapping[str, Any]) -> bytes:
        """``d`` of an entry, redacted."""
        return encode_audit(said, self._redact)

    async def note(self, kind: str, *, run_id: str = "", principal: str = "", **said: Any) -> None:
        """Note what was done. Raises nothing: it is counted and logged where it could not be."""
        if not self.on:
            return
        cap = self._store.settings.audit_max_entries
        fields = (b"kind", kind, b"run_id", run_id, b"d", self.encoded({"principal": principal, **said}))
        try:
            await self._store.call(b"XADD", self.key, b"MAXLEN", b"~", cap, b"*", *fields)
        except RuncastError as error:
            metrics.AUDIT_LOST.inc()
            _log.warning("the audit lacks that %s of run %s: %s", kind, run_id, error)

    async def read(self, after: str = "0-0") -> AsyncIterator[AuditEntry]:
        """What is kept, oldest first, from behind the entry ``after`` to the newest of now. Raises
        ``StoreUnavailable``."""
        while page := await self._page(after):
            for entry in page:
                yield entry
            after = page[-1].id

    async def _page(self, after: str) -> list[AuditEntry]:
        found = await self._store.call(b"XRANGE", self.key, f"({after}", b"+", b"COUNT", _PAGE)
        return [parse_audit(id_, flat) for id_, flat in found]

    async def oldest(self) -> str | None:
        """The id of the oldest entry that is kept."""
        found = await self._store.call(b"XRANGE", self.key, b"-", b"+", b"COUNT", 1)
        return found[0][0].decode() if found else None

    async def wait(self, link: Link, after: str) -> list[AuditEntry]:
        """Entries behind ``after``; none within ``RUNCAST_BLOCK`` seconds: ``[]``. Raises ``StoreUnavailable``."""
        block = self._store.settings.block
        asked = (b"XREAD", b"COUNT", _PAGE, b"BLOCK", round(block * 1000), b"STREAMS", self.key, after)
        found = await link.call(*asked, deadline=block + _GRACE)
        return [parse_audit(id_, flat) for _, entries in found or () for id_, flat in entries]
