"""Stands in for the module behind ``hermes chat``."""

from __future__ import annotations

import os
import sys
from typing import Any

from hermes_state import SessionDB

CLI_CONFIG: dict[str, Any] = {}


class HermesCLI:
    def __init__(self, model: Any = None, toolsets: Any = None, max_turns: Any = None, resume: Any = None) -> None:
        self.model, self.toolsets, self.max_turns = model or "default-model", toolsets, max_turns
        self.session_id = resume or "fresh"
        print("a notice of no interest")
        self._session_db, self.agent = SessionDB(), None
        self.conversation_history: list[Any] = []
        self._approval_callback = self._clarify_callback = None

    def _claim_active_session(self, surface: str) -> bool:
        if os.environ.get("STAND_IN_BUSY"):
            print("two sessions at once are enough")
            return False
        return True

    def _ensure_runtime_credentials(self) -> bool:
        if os.environ.get("STAND_IN_KEYLESS"):
            print("\x1b[1;31mthere is no key: run hermes setup\x1b[0m", file=sys.stderr)
            return False
        return True

    def _resolve_turn_agent_config(self, message: str) -> dict[str, Any]:
        return {"model": self.model, "runtime": {"provider": "stand-in"}}

    def _init_agent(self, *, model_override: Any = None, runtime_override: Any = None) -> bool:
        from run_agent import AIAgent
        from tools import terminal_tool

        if os.environ.get("STAND_IN_BROKEN"):
            raise RuntimeError("the agent cannot be made")
        terminal_tool.set_approval_callback(self._approval_callback)
        options = {"toolsets": self.toolsets, "max_iterations": self.max_turns}
        self.agent = AIAgent(session_id=self.session_id, model=model_override, **options)
        return True


def _finalize_single_query(cli: HermesCLI) -> None:
    print("finalized")
