"""A Hermes home of the test's own making: the columns that count, in either of the ways in which Hermes keeps it."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

__all__ = ["HermesHome"]

_SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT, model_config TEXT, parent_session_id TEXT,
    started_at REAL NOT NULL, ended_at REAL, end_reason TEXT, message_count INTEGER DEFAULT 0, title TEXT
    {more});
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT,
    timestamp REAL NOT NULL);
CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
"""
_NEWER = ", archived INTEGER NOT NULL DEFAULT 0, hidden INTEGER NOT NULL DEFAULT 0"


class HermesHome:
    """``write_ahead``: with a log beside the file, that keeps what it has as long as this connection is open."""

    def __init__(self, home: Path, *, write_ahead: bool = False, newer: bool = True) -> None:
        home.mkdir(exist_ok=True)
        self.path, self.store = home, home / "state.db"
        self._db = sqlite3.connect(self.store, isolation_level=None)
        if write_ahead:
            assert self._db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        self._db.executescript(_SCHEMA.format(more=_NEWER if newer else ""))

    def session(self, session_id: str, *, at: float, messages: int = 2, source: str = "cli", **columns: Any) -> None:
        """A session that began at ``at`` (seconds) and got a message each second from then on."""
        if "model_config" in columns:
            columns["model_config"] = json.dumps(columns["model_config"])
        row = {"id": session_id, "source": source, "started_at": at, "message_count": messages, **columns}
        names = ", ".join(row)
        self._db.execute(f"INSERT INTO sessions ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        for n in range(messages):
            self._message(session_id, at + n)

    def say(self, session_id: str, at: float | None = None) -> None:
        """One more message."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("UPDATE sessions SET message_count = message_count + 1 WHERE id = ?", (session_id,))
        self._message(session_id, time.time() if at is None else at)
        self._db.execute("COMMIT")

    def _message(self, session_id: str, at: float) -> None:
        self._db.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'x', ?)", (session_id, at)
        )

    def locked(self) -> None:
        """Keeps everybody from reading, until ``unlocked``."""
        self._db.execute("BEGIN EXCLUSIVE")

    def unlocked(self) -> None:
        self._db.execute("ROLLBACK")

    def close(self) -> None:
        self._db.close()
