"""Hermes' session store (``state.db``), read without leaving a trace in it.

Hermes' builds differ in their columns and in how the file is written: some keep a write-ahead log beside it, which
may hold everything while ``state.db`` is an empty page, and leave it there when they exit. So the columns are asked
for first, and what is beside the file decides how it is opened.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["NAME", "UnknownStore", "read_sessions", "signature"]

NAME = "state.db"
LIMIT = 200
_CANDIDATES = 8
"""Rows read per conversation that is wanted: parts of long conversations and delegated work fall out afterwards."""
_HIDDEN_SOURCES = ("cron", "tool", "webui")
"""What runs by itself, what says that it belongs in nobody's list (Runcast's own runs do), what the WebUI has."""
_WANTED = ("title", "model", "message_count", "ended_at", "end_reason", "parent_session_id", "model_config")
_BUSY_SECONDS = 1.0

_CLI = frozenset({"cli", "tui", "oneshot"})
_MESSAGING = frozenset(
    {"bluebubbles", "dingtalk", "discord", "email", "feishu", "matrix", "mattermost", "qqbot", "signal", "slack"}
    | {"sms", "telegram", "wecom", "wecom_callback", "weixin", "whatsapp", "whatsapp_cloud", "yuanbao"}
)
_LABELS = {"cli": "CLI", "tui": "TUI", "oneshot": "CLI", "api_server": "API", "sms": "SMS", "wecom": "WeCom"}

Row = Mapping[str, Any]


class UnknownStore(Exception):
    """It is a database, but not one of Hermes'. The text says what it lacks."""


def signature(home: Path) -> tuple[tuple[int, int, int], ...]:
    """What changes whenever Hermes writes: inode, time (ns) and size of the store and of the log beside it. Of a file
    that is not there: zeros. Raises ``OSError`` where the home itself cannot be looked into."""
    home.stat()
    return tuple(_stat(home / name) for name in (NAME, f"{NAME}-wal"))


def _stat(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def read_sessions(home: Path, limit: int = LIMIT) -> list[dict[str, Any]]:
    """The conversations of this Hermes home, the most recently used first, at most ``limit``; none before Hermes ran.

    Raises ``OSError`` or ``sqlite3.Error`` where the store cannot be read, ``UnknownStore``.
    """
    path = home / NAME
    if not path.exists():
        return []
    with closing(_open(path)) as db:
        db.row_factory = sqlite3.Row
        rows = [dict(row) for row in _candidates(db, limit * _CANDIDATES)]
    return _conversations(rows)[:limit]


def _open(path: Path) -> sqlite3.Connection:
    mode = "mode=ro&immutable=1" if _lies_still(path) else "mode=ro"
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=_BUSY_SECONDS)


def _lies_still(path: Path) -> bool:
    """Whether nobody has it open and nothing is beside it, in a mode in which even a reader makes files otherwise."""
    with path.open("rb") as file:
        write_ahead = file.read(20)[18:20] == b"\2\2"
    beside = (path.with_name(f"{NAME}-wal"), path.with_name(f"{NAME}-shm"))
    return write_ahead and not any(other.exists() for other in beside)


def _columns(db: sqlite3.Connection, table: str) -> frozenset[str]:
    return frozenset(row[1] for row in db.execute(f"PRAGMA table_info({table})"))


def _candidates(db: sqlite3.Connection, limit: int) -> list[sqlite3.Row]:
    """The rows of sessions with messages, the newest activity first. A column that this Hermes lacks is NULL."""
    sessions, messages = _columns(db, "sessions"), _columns(db, "messages")
    if missing := {"id", "source", "started_at", "message_count"} - sessions:
        raise UnknownStore(f"{NAME} has no {', '.join(sorted(f'sessions.{name}' for name in missing))}")
    columns = [f"s.{name}" if name in sessions else f"NULL AS {name}" for name in _WANTED]
    dated = {"session_id", "timestamp"} <= messages
    last = "(SELECT MAX(m.timestamp) FROM messages m WHERE m.session_id = s.id)" if dated else "NULL"
    hidden = [f"COALESCE(s.{name}, 0) = 0" for name in ("archived", "hidden") if name in sessions]
    shown = ["s.message_count > 0", f"s.source NOT IN ({', '.join('?' * len(_HIDDEN_SOURCES))})", *hidden]
    query = (
        f"SELECT s.id, s.source, s.started_at, {', '.join(columns)}, {last} AS last_message_at FROM sessions s"
        f" WHERE {' AND '.join(shown)} ORDER BY COALESCE(last_message_at, s.started_at) DESC, s.id LIMIT ?"
    )
    return db.execute(query, (*_HIDDEN_SOURCES, limit)).fetchall()


def _conversations(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a conversation: Hermes goes on under a new id when it compresses, and puts delegated work into
    sessions of its own. ``rows`` are in order of activity, and so is the answer."""
    by_id = {str(row["id"]): row | {"config": _config(row)} for row in rows}
    found: dict[str, dict[str, Any]] = {}
    for row in by_id.values():
        if row["config"].get("_delegate_from") is None:
            root = _root(row, by_id)
            found.setdefault(str(root["id"]), _entry(row, root))  # the first of a chain is its newest part
    return list(found.values())


def _config(row: Row) -> dict[str, Any]:
    try:
        config = json.loads(row["model_config"] or "{}")
    except (TypeError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _root(row: Row, by_id: Mapping[str, Row]) -> Row:
    """The first part of the conversation that ``row`` goes on with. A store may be damaged: a ring of parents ends."""
    seen = {row["id"]}
    while (parent := by_id.get(str(row["parent_session_id"]))) is not None and parent["id"] not in seen:
        branched = row["config"].get("_branched_from") == parent["id"]
        if parent["end_reason"] != "compression" or branched or parent["source"] != row["source"]:
            break
        seen.add(parent["id"])
        row = parent
    return row


def _entry(row: Row, root: Row) -> dict[str, Any]:
    """A conversation as the WebUI lists it: the id to go on with, the title that it began under."""
    source = str(row["source"] or "").strip().lower()
    label = _LABELS.get(source) or source.replace("_", " ").title() or "Agent"
    updated = _number(row["last_message_at"]) or _number(row["started_at"])
    return {
        "session_id": str(row["id"]),
        "title": root["title"] or row["title"] or f"{label} session",
        "model": row["model"],
        "message_count": row["message_count"],
        "created_at": _number(root["started_at"]),
        "updated_at": updated,
        "last_message_at": _number(row["last_message_at"]),
        "source": source or None,
        "source_tag": source or None,
        "raw_source": source or None,
        "session_source": _family(source),
        "source_label": label,
        "is_cli_session": source in _CLI,
        "parent_session_id": root["parent_session_id"],
        "read_only": True,
    }


def _family(source: str) -> str:
    if source in _CLI:
        return "cli"
    if source in _MESSAGING:
        return "messaging"
    return "api" if source == "api_server" else "other"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
