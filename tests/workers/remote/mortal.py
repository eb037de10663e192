"""A worker that relays, and dies by SIGKILL at a step that it is told: ``python -m … URL NAMESPACE SERVICE STEP N``.

``STEP``: ``append`` or ``keep``, with ``-after`` where the store has it already; ``never`` for one that lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from broker import api
from broker.log import RunLog
from broker.runs import Runs
from broker.settings import Settings
from tests.workers.remote.stage import FAST
from workers.remote.runner import RemoteRunner
from workers.remote.settings import RemoteSettings
from workers.worker import Worker


def _mortal(call: Callable[..., Awaitable[Any]], number: int, *, after: bool) -> Callable[..., Awaitable[Any]]:
    calls = 0

    async def counted(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await call(*args, **more)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return counted


async def main(url: str, namespace: str, service: str, step: str, number: int) -> None:
    what, _, after = step.partition("-")
    if what == "append":
        RunLog.append = _mortal(RunLog.append, number, after=bool(after))  # type: ignore[method-assign]
    elif what == "keep":
        Runs.keep_source = _mortal(Runs.keep_source, number, after=bool(after))  # type: ignore[method-assign]
    fast = {"beat": 0.1, "sweep": 0.2, "lease": 1.0, "block": 1.0}
    settings = Settings(redis_url=url, namespace=namespace, **fast)
    runner = RemoteRunner(RemoteSettings(url=service, **FAST))
    async with api.open(settings=settings) as broker:
        await Worker(broker, runners={"remote": runner}).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
