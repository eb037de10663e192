"""What a runner needs of the store that mirrors a run of another service: where it stands, and which ids it has.

A runner whose attribute ``mirrors`` is true makes no run of its own, it relays one. For it

- no item of ours opens the log (``run.started``, ``run.restarted``): item by item it is the service's;
- items that the service knows nothing of get ``source_id`` None; unless the runner's attribute ``names_sources`` is
  false: there is no service, and nothing has such an id;
- a further attempt goes on where the one before ended: what that emitted counts on (message, usage), it is not void;
- the run has further attempts even where it asked for none: relaying it again executes nothing twice.

The last two count from the first ``keep`` on.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import UNSET

from broker.errors import Fenced, InvalidItem, OutageTooLong, RuncastError, Sealed, StoreUnavailable
from broker.items import Entry, Item, Raw, StreamItem, decode
from broker.log import RunLog
from broker.records import RunRecord
from broker.runs import Runs
from broker.settings import Settings

__all__ = ["Mirror", "mirrored"]

T = TypeVar("T")
_FIRST_BACKOFF, _LAST_BACKOFF = 0.05, 1.0


def mirrored(item: Item | Raw) -> bool:
    """Whether an item says itself what id the service gave it, or that it has none."""
    return "source_id" in item.fields if isinstance(item, Raw) else item.source_id is not UNSET


class Mirror:
    """Of one attempt. While the store is away every call waits, for ``outage_limit`` seconds: ``OutageTooLong`` then.

    ``names_sources``: items have the ids that a service gave them, or None.

    ``flush`` returns when all that was emitted is stored; ``epoch`` is the publisher's, which may change; ``broke`` is
    told what ends the attempt: another owner, too long an outage.
    """

    def __init__(
        self,
        runs: Runs,
        log: RunLog,
        record: RunRecord,
        settings: Settings,
        *,
        flush: Callable[[], Awaitable[None]],
        epoch: Callable[[], int],
        broke: Callable[[RuncastError], None],
        names_sources: bool = True,
    ) -> None:
        self.names_sources = names_sources
        self._runs, self._log, self._record, self._settings = runs, log, record, settings
        self._flush, self._epoch, self._broke = flush, epoch, broke

    @property
    def source(self) -> str | None:
        """What an earlier attempt kept last; ``None``: nothing was kept, this attempt begins."""
        return self._record.source

    async def keep(self, source: str) -> None:
        """Store where the runner stands, behind all that it emitted so far.

        A worker that dies between the two has emitted more than ``source`` says: look at ``ids`` when going on.
        Raises ``Fenced``, ``Sealed``, and what ``flush`` raises.
        """
        try:
            await self._flush()
        except (Fenced, Sealed, OutageTooLong) as error:
            self._broke(error)
            raise
        await self._persist(lambda: self._keep(source))

    async def ids(self) -> list[str]:
        """The service's ids of the items so far, oldest first."""
        return await self._persist(lambda: self._log.source_ids(self._record.run_id))

    async def items(self) -> list[StreamItem | Raw]:
        """What earlier attempts emitted and retention has kept. An item that cannot be read is left out."""
        found: list[StreamItem | Raw] = []
        after, last = self._record.first - 1, self._record.last
        while after < last:
            page = await self._page(after)
            if not page:
                break
            found += [item for entry in page if (item := _read(entry.type, entry.data)) is not None]
            after = page[-1].seq
        return found

    async def _page(self, after: int) -> list[Entry]:
        size = self._settings.read_items
        return await self._persist(lambda: self._log.read(self._record.run_id, after, limit=size))

    async def _keep(self, source: str) -> None:
        record, epoch = self._record, self._epoch()
        try:
            await self._runs.keep_source(record.run_id, record.owner, epoch, source)
        except Fenced as error:
            if self._epoch() == epoch and (await self._runs.get(record.run_id)).owner != record.owner:
                raise
            # The store lost items, and the publisher is just changing the epoch.
            raise StoreUnavailable("the run's epoch is changing") from error

    async def _persist(self, step: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._until_answered(step)
        except (Fenced, Sealed, OutageTooLong) as error:
            self._broke(error)
            raise

    async def _until_answered(self, step: Callable[[], Awaitable[T]]) -> T:
        since, pause = time.monotonic(), _FIRST_BACKOFF
        while True:
            try:
                return await step()
            except StoreUnavailable as error:
                if time.monotonic() - since >= self._settings.outage_limit:
                    message = "the store has been away for longer than RUNCAST_OUTAGE_LIMIT"
                    raise OutageTooLong(message) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LAST_BACKOFF)


def _read(type_: bytes, data: bytes) -> StreamItem | Raw | None:
    try:
        return decode(type_, data)
    except InvalidItem:
        return None
