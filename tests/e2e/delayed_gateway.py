"""A gateway whose range reads take longer, to widen the seam between replay and live: ``python -m … SECONDS``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from broker.log import RunLog
from broker.settings import Settings
from gateway.server import serve


def main(delay: float) -> None:
    original = RunLog.read

    async def read(self: RunLog, *args: Any, **kwargs: Any) -> Any:
        entries = await original(self, *args, **kwargs)
        await asyncio.sleep(delay)
        return entries

    RunLog.read = read  # type: ignore[method-assign]
    serve(Settings(), log_level="info")


if __name__ == "__main__":
    main(float(sys.argv[1]))
