"""Running the gateway under uvicorn: one process or several on one socket, drained at SIGTERM.

Shutdown, in order: the listener closes; every stream ends at a frame boundary with a jittered ``retry:``
(``StreamProtocol.shutdown``); requests under way get ``drain`` seconds; the broker closes; the process exits with 0.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
from collections.abc import Generator

import uvicorn
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from broker.exposition import shared_by_processes
from broker.logs import logging_config
from broker.redaction import secrets_of
from broker.settings import Settings
from gateway.transport import StreamProtocol
from gateway.webui.settings import WebuiSettings

__all__ = ["GatewayServer", "bind", "config", "serve"]

TARGET = "gateway.asgi:app"
BACKLOG = 4096


class GatewayServer(uvicorn.Server):
    """uvicorn's server, except that a drain asked for by SIGTERM is a success and not a death by signal."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _settle_collector()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals = [s for s in self._captured_signals if s != signal.SIGTERM]


def _settle_collector() -> None:
    """What is loaded by now lives as long as the process: the garbage collector need not walk it again and again.

    And a range read makes objects by the thousand that die by counting: the default threshold of 700 would look at
    them several times a read, which took a fifth of a replay.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


class _GatewayProcess(Process):
    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = GatewayServer(self.config)
        return self._server


def config(settings: Settings, app: str = TARGET, *, workers: int = 1, log_level: str = "warning") -> uvicorn.Config:
    """uvicorn as the gateway wants it: uvloop, our protocol, our log records, no access log, no WebSockets."""
    secrets = secrets_of(settings, WebuiSettings)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="auto",
        http=StreamProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=logging_config(log_level, settings.log_format, secrets=secrets, service="runcast-gateway"),
        log_level=log_level,
        backlog=BACKLOG,
        workers=workers,
        timeout_graceful_shutdown=max(round(settings.drain), 1),
        server_header=False,
    )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ``OSError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family=family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    sock.set_inheritable(True)
    return sock


def serve(
    settings: Settings, sock: socket.socket | None = None, *, workers: int = 1, log_level: str = "warning"
) -> None:
    """Serve until SIGTERM or SIGINT. ``settings`` count for this process; further processes read their own.

    Raises ``OSError`` where the address cannot be bound, ``KeyboardInterrupt`` after a drain that SIGINT asked for.
    """
    sock = sock or bind(settings.host, settings.port)
    cfg = config(settings, workers=workers, log_level=log_level)
    if workers == 1:
        GatewayServer(cfg).run(sockets=[sock])
        return
    from uvicorn.supervisors import multiprocess

    multiprocess.Process = _GatewayProcess  # type: ignore[misc]  # uvicorn names no other way to choose it
    with shared_by_processes():
        Multiprocess(cfg, sockets=[sock]).run()
