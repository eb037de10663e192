"""The graph that a peer, ``langgraph dev``, runs: one node that writes items at the pace that its input asks for.

It begins once the file ``go`` is there: when all viewers are. ``text`` is the body of an item.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, TypedDict

from langgraph.config import get_stream_writer  # type: ignore[import-not-found]
from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found]

_REST = {"run_id": "run_01kb8d2rqs6x9v3m5t7w8y0z1a", "component_id": "agent", "round": 1, "index": 0}
"""What an item of ours has beside."""


class State(TypedDict):
    rounds: int
    burst: int
    pause: float
    text: str
    go: str


async def talk(state: State) -> dict[str, Any]:
    write = get_stream_writer()
    while state["go"] and not os.path.exists(state["go"]):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.02)
    due, seq = time.monotonic(), 0
    for _ in range(state["rounds"]):
        for _ in range(state["burst"]):
            seq += 1
            write(
                {"seq": seq, "ts": time.time(), "component_id": "agent", "round": 1, "index": 0, "text": state["text"]}
            )
        due += state["pause"]
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
    return {}


graph = StateGraph(State).add_node("talk", talk).add_edge(START, "talk").add_edge("talk", END).compile()
