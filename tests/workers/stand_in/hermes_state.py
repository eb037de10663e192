"""Stands in for Hermes' sessions."""

from __future__ import annotations


class SessionDB:
    def get_session(self, session_id: str) -> dict[str, str] | None:
        return {"id": session_id} if session_id == "known" else None
