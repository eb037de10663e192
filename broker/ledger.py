"""The ledger: what runs cost, by day and principal, and the cap on it. One slot, three scripts.

- ``reserve`` before a run is made: what it may cost is held back, or it is refused. Check and reservation are one step,
  so any number of gateways at once let no more through than the cap and one reservation.
- ``settle`` once it has ended: its cost is booked in place of the reservation, and its audit entry written, in one step
  and once. A worker does it after the fence; so does whoever else sees the end (the follower of the bus in every
  gateway, the sweeps), so that nothing is lost with a worker or a gateway.
- ``release`` where a run was reserved for and then not made; the sweeps do it for a gateway that died in between.

A run is booked on the day (UTC, by the store's clock) of its reservation, or, without one, of its making. Where neither
a cap nor an audit is configured the ledger sends no command at all.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from broker import metrics
from broker.audit import Audit
from broker.audit_entries import run_audit
from broker.budget import Budget, Caps, date_of, parse_budget
from broker.charges import charge_of, label_of
from broker.errors import CostCapReached, RuncastError, StoreError, StoreUnavailable
from broker.money import dollars, nano_of, shown
from broker.records import ENDED, RunRecord, pairs, parse_record
from broker.redis import Store
from broker.scripts import SCRIPTS

__all__ = ["FIRST_RESERVATION", "LAST_RUNS", "Ledger", "Settlement"]

_log = logging.getLogger("runcast.ledger")

FIRST_RESERVATION = 500_000_000
"""Nano-dollars that a run holds back whose model has no run yet to go by."""
LAST_RUNS = 20
"""So many runs of a model say what its next one may cost."""
_DAY = 86_400
_DAYS_KEPT = 40
_ROUNDS = 4
_PAGE = 200
_MARGIN_MS = 3_600_000


class Settlement(NamedTuple):
    """What was booked, in nano-dollars; ``reserved``: what had been held back, ``None`` where nothing was."""

    booked: int
    reserved: int | None


class Ledger:
    """The ledger of one store. Methods raise ``StoreUnavailable`` where Redis is away."""

    def __init__(self, store: Store) -> None:
        self._store, self._keys = store, store.keys
        settings = store.settings
        self.audit = Audit(store)
        self.caps = Caps(nano_of_setting(settings.cost_cap), nano_of_setting(settings.cost_cap_principal))
        self._reservation = nano_of_setting(settings.cost_reservation)
        self._today = int(time.time() // _DAY)
        """Only a guess: the store says where it is wrong."""

    @property
    def on(self) -> bool:
        """Runs that end are to be settled."""
        return self.caps.set or self.audit.on

    # Before a run.

    async def reserve(self, run_id: str, principal: str, model: str) -> int | None:
        """Hold back what a run of ``model`` (``charges.label_of``) may cost: → nano-dollars; ``None``: there is no cap.

        Repeatable with the same run id. Whoever reserved makes the run, or calls ``release``; where he dies before, a
        sweep does. Raises ``CostCapReached``.
        """
        if not self.caps.set:
            return None
        own = self._reservation
        refusal = self.audit.encoded({"principal": principal, "model": model})
        args = [_text(self.caps.total), _text(self.caps.principal), _text(own), FIRST_RESERVATION, _DAYS_KEPT * _DAY]
        args += [self._store.settings.audit_max_entries, refusal]
        rest = (self._held, self._open, self._costs(model), self.audit.key)
        reply = await self._on_day("reserve", self._today, rest, run_id, [principal, *args])
        if reply[0] == b"REFUSED":
            raise self._refused(reply)
        return int(reply[1])

    def _refused(self, reply: Sequence[Any]) -> CostCapReached:
        scope, cap, spent, reserved, left = reply[1].decode(), *map(int, reply[2:6])
        metrics.COST_REFUSED.labels(scope).inc()
        whose = "all together" if scope == "total" else "one principal"
        said = f"the cost cap of ${shown(cap)} a day for {whose} is reached: ${shown(spent)} spent"
        held = f", ${shown(reserved)} held back for runs that go on" if reserved else ""
        advice = "try again when some of them have ended, or" if reserved and spent < cap else "try again"
        message = f"{said}{held}; {advice} after 00:00 UTC"
        return CostCapReached(message, scope=scope, retry_after=max(left, 1))

    async def release(self, run_id: str) -> bool:
        """The run will not be made: → whether anything was held for it. Repeatable."""
        if not self.caps.set:
            return False
        return await self._release(run_id)

    async def _release(self, run_id: str) -> bool:
        reply = await self._on_day("release", self._today, (self._held, self._open), run_id, [])
        return int(reply[1]) >= 0

    # After it.

    async def settle(self, record: RunRecord) -> Settlement | None:
        """Book a run that has ended and audit it; ``None`` where that was done before, or there is nothing to do."""
        if not self.on or not record.is_ended:
            return None
        charge, model, settings = charge_of(record), label_of(record.request), self._store.settings
        entry = self.audit.encoded(run_audit(record, charge, text=settings.audit_text)) if self.audit.on else b"{}"
        fallback = 0 if self._reservation is None else self._reservation
        args: list[Any] = [record.principal, charge.nano, int(charge.known), int(charge.sample), fallback]
        args += [charge.input_tokens, charge.output_tokens, self._remember_ms, _DAYS_KEPT * _DAY]
        args += [settings.audit_max_entries, round(settings.audit_ttl * 1000), entry, LAST_RUNS]
        rest = (self._held, self._open, self._settled(record.run_id), self._costs(model), self.audit.key)
        reply = await self._on_day("settle", int(record.created // _DAY), rest, record.run_id, args)
        if reply[0] == b"DONE":
            return None
        metrics.COST_BOOKED.inc(float(dollars(int(reply[1]))))
        metrics.RUNS_SETTLED.labels("known" if charge.known else "unknown").inc()
        metrics.SETTLE_LAG.observe(max(float(reply[3]) - (record.ended or record.created), 0.0))
        return Settlement(int(reply[1]), int(reply[2]) if int(reply[2]) >= 0 else None)

    async def try_settle(self, run_id: str) -> None:
        """The same for a run that has just ended, whatever its record says. Raises nothing: who follows makes up for
        it."""
        if not self.on:
            return
        try:
            await self._settle_by_id(run_id)
        except RuncastError as error:
            _log.info("run %s is settled later: %s", run_id, error)

    async def settle_ended(self, run_ids: Sequence[str]) -> int:
        """Settle those of these runs that have ended and are not settled: → how many this call settled.

        One whose record is broken is logged and left out.
        """
        if not self.on:
            return 0
        settled = 0
        for start in range(0, len(run_ids), _PAGE):
            page = run_ids[start : start + _PAGE]
            marks = await self._store.pipeline([(b"EXISTS", self._settled(run_id)) for run_id in page])
            for run_id, mark in zip(page, marks, strict=True):
                settled += not mark and await self._settle_by_id(run_id)
        return settled

    async def _settle_by_id(self, run_id: str) -> bool:
        try:
            flat = await self._store.call(b"HGETALL", self._keys.run(run_id))
            return bool(flat and await self.settle(parse_record(run_id, pairs(flat))))
        except StoreUnavailable:
            raise
        except RuncastError as error:
            _log.error("run %s could not be settled: %s", run_id, error)
            return False
        except Exception:  # what somebody else's worker wrote must not keep the other runs waiting
            _log.exception("run %s could not be settled", run_id)
            return False

    # What others left.

    async def sweep(self, live: Collection[str]) -> int:
        """Look at what is held back for runs that are not among the ``live`` ones: settle those that have ended, and
        release those that were never made. → how many. Also sets the gauges."""
        if not self.caps.set:
            return 0
        await self._show()
        held = await self._store.call(b"ZRANGE", self._open, 0, -1, b"WITHSCORES")
        since = {id_.decode(): float(at) for id_, at in zip(held[::2], held[1::2], strict=True)}
        doubtful = [run_id for run_id in since if run_id not in live]
        if not doubtful:
            return 0
        commands = [(b"HGET", self._keys.run(run_id), b"status") for run_id in doubtful]
        (seconds, micros), *statuses = await self._store.pipeline([(b"TIME",), *commands])
        latest = int(seconds) + int(micros) / 1e6 - self._store.settings.requeue_after
        done = 0
        for run_id, status in zip(doubtful, statuses, strict=True):
            if status is None and since[run_id] < latest:
                done += await self._abandoned(run_id)
            elif status is not None and status.decode() in ENDED:
                done += await self._settle_by_id(run_id)
        return done

    async def _abandoned(self, run_id: str) -> bool:
        if not await self._release(run_id):
            return False
        metrics.RESERVATIONS_ABANDONED.inc()
        _log.info("what was held back for run %s, which was never made, is free again", run_id)
        return True

    async def _show(self) -> None:
        total = (await self.budget()).total
        metrics.COST_SPENT.set(float(dollars(total.spent)))
        metrics.COST_RESERVED.set(float(dollars(total.reserved)))
        if self.caps.total is not None:
            metrics.COST_CAP.set(float(dollars(self.caps.total)))

    async def budget(self, day: int | None = None) -> Budget:
        """The books of a day (counted from 1970-01-01, UTC), of today unless given."""
        if day is None:
            day = self._today = int((await self._store.call(b"TIME"))[0]) // _DAY
        flat = await self._store.call(b"HGETALL", self._day_key(day))
        return parse_budget(day, self.caps, pairs(flat))

    # The scripts.

    async def _on_day(self, name: str, day: int, rest: Sequence[bytes], run_id: str, args: Sequence[Any]) -> Any:
        """Which day it is about is known to the store alone; where the guess was wrong, it says so, and nothing was
        done."""
        for _ in range(_ROUNDS):
            keys = [self._day_key(day), *rest]
            reply = await self._store.script(SCRIPTS[name], keys, [run_id, day, *args])
            if reply[0] != b"DAY":
                return reply
            day = int(reply[1])
            if name == "reserve":
                self._today = day
        raise StoreError(f"{name} of run {run_id!r}: the store's day changed {_ROUNDS} times in a row")

    @property
    def _held(self) -> bytes:
        return self._keys.ledger("held")

    @property
    def _open(self) -> bytes:
        return self._keys.ledger("open")

    def _day_key(self, day: int) -> bytes:
        return self._keys.ledger(f"day:{date_of(day)}")

    def _settled(self, run_id: str) -> bytes:
        return self._keys.ledger(f"settled:{run_id}")

    def _costs(self, model: str) -> bytes:
        """Models are named by whoever asks for one: a long or odd name stands there as its digest."""
        plain = model.isascii() and model.isprintable() and len(model) <= 64
        return self._keys.ledger("costs:" + (model if plain else hashlib.sha256(repr(model).encode()).hexdigest()))

    @property
    def _remember_ms(self) -> int:
        """Longer than the record lives: whoever can still read it can still know that it is settled."""
        return round(self._store.settings.record_ttl * 1000) + _MARGIN_MS


def nano_of_setting(amount: Any) -> int | None:
    return None if amount is None else nano_of(amount)


def _text(amount: int | None) -> str:
    return "" if amount is None else str(amount)
