"""The broker: what a run's stream is, and how it is stored, read and fanned out. No HTTP, no Hermes.

async with broker.open("redis://…") as b:
    async for entry in b.stream(run_id, modes={"messages"}): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.api import Broker, StreamEntry, open
    from broker.settings import Settings

__all__ = ["Broker", "Settings", "StreamEntry", "open"]


def __getattr__(name: str) -> Any:
    # Lazily: the pure modules can be used without loading a Redis client.
    if name == "Settings":
        from broker.settings import Settings

        return Settings
    if name in __all__:
        from broker import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
