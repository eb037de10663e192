"""The audit as lines of JSON in a file, each entry once: ``RUNCAST_AUDIT_FILE``.

Of all processes of a machine that name the file one writes it; when that one ends, another goes on. ``FILE.position``
is what they lock, and says how far the lines go, as the last line does: so whoever goes on, or starts again, leaves
nothing out and writes nothing twice, and a line that a crash tore is written again. A file that was moved away
(logrotate) is begun anew where the one before ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
from pathlib import Path

import msgspec

from broker import metrics
from broker.audit import Audit
from broker.audit_entries import AuditEntry
from broker.errors import RuncastError
from broker.redis import Link, Store

__all__ = ["AuditFile"]

_log = logging.getLogger("runcast.audit")
_PAUSE = 1.0
_ENTRY = re.compile(r"\d{1,19}-\d{1,20}\Z")
_WIDTH = 48
_TAIL = 1 << 20
"""No line is longer: texts in an entry are cut."""


class _Line(msgspec.Struct):
    id: str


_decoder = msgspec.json.Decoder(_Line)


class AuditFile:
    """``run_forever`` until it is cancelled. Without ``RUNCAST_AUDIT_FILE``, or without an audit, it does nothing."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store, self._audit = store, audit
        self._path: Path | None = store.settings.audit_file if audit.on else None

    async def run_forever(self) -> None:
        """Write while this process is the one that does; wait out outages, full disks, and the one that writes now."""
        if self._path is None:
            return
        said = ""
        while True:
            try:
                await self._write(self._path)
            except BlockingIOError:
                said = ""  # somebody else's turn
            except (RuncastError, OSError) as error:
                if str(error) != said:
                    _log.warning("the audit's file %s waits: %s", self._path, error)
                said = str(error)
            except Exception:
                _log.exception("writing the audit's file failed; it starts again")
            await asyncio.sleep(_PAUSE)

    async def _write(self, path: Path) -> None:
        link: Link | None = None
        lines = _Lines(path)
        try:
            await self._look_for_a_gap(lines)
            link = await self._store.link(self._audit.key)
            while True:
                if entries := await self._audit.wait(link, lines.after):
                    lines.append(entries)
        finally:
            lines.close()
            if link is not None:
                await link.aclose()

    async def _look_for_a_gap(self, lines: _Lines) -> None:
        """Where the stream dropped what was written last, it may have dropped what followed: the file says so."""
        oldest, after = await self._audit.oldest(), lines.after
        if after != "0-0" and oldest is not None and _place(oldest) > _place(after):
            metrics.AUDIT_GAPS.inc()
            lines.append([AuditEntry(after, {"id": after, "kind": "audit.gap", "earliest": oldest})])


class _Lines:
    """The file, open, and this process's alone. Raises ``BlockingIOError`` where another one writes it, ``OSError``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._position = _open(path.with_name(f"{path.name}.position"))
        self._file = -1
        try:
            fcntl.flock(self._position, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = _open(path)
            self.after = max(_known(self._position), _last_id(self._file), key=_place)
        except BaseException:
            self.close()
            raise

    def append(self, entries: list[AuditEntry]) -> None:
        """Their lines, whole, and the position behind them."""
        if _moved(self._file, self._path):
            os.close(self._file)
            self._file = _open(self._path)
        _write_all(self._file, b"".join(entry.line() for entry in entries))
        self.after = entries[-1].id
        os.pwrite(self._position, self.after.encode().ljust(_WIDTH) + b"\n", 0)

    def close(self) -> None:
        for descriptor in (self._file, self._position):
            if descriptor >= 0:
                os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _known(position: int) -> str:
    text = os.pread(position, _WIDTH, 0).decode("ascii", "replace").strip()
    return text if _ENTRY.match(text) else "0-0"


def _last_id(file: int) -> str:
    """The id of the last line; ``0-0``: there is none. What follows the last line end is cut off."""
    size = os.lseek(file, 0, os.SEEK_END)
    tail = os.pread(file, _TAIL, max(size - _TAIL, 0))
    whole = tail[: tail.rfind(b"\n") + 1]
    os.ftruncate(file, size - len(tail) + len(whole))
    os.lseek(file, 0, os.SEEK_END)
    for line in reversed(whole.splitlines()):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):  # else it is somebody else's line
            if _ENTRY.match(id_ := _decoder.decode(line).id):
                return id_
    return "0-0"


def _write_all(file: int, lines: bytes) -> None:
    """All or, where the disk is full, none: half a line would have to be cut off by whoever comes next."""
    begin = os.lseek(file, 0, os.SEEK_END)
    left = memoryview(lines)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, begin)
        raise


def _moved(file: int, path: Path) -> bool:
    try:
        return not os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return True


def _place(entry_id: str) -> tuple[int, int]:
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq or 0)
