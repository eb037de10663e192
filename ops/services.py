"""``runcast serve`` and ``runcast worker``: the two processes of a deployment, in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from logging.config import dictConfig

import click
import uvloop
from pydantic_settings import BaseSettings

from broker import api, tracing, urls
from broker.api import Broker
from broker.artifact_store import ArtifactStore
from broker.errors import StoreUnavailable
from broker.exposition import introduce
from broker.logs import logging_config
from broker.redaction import secrets_of
from broker.settings import Settings
from gateway import server
from gateway.webui.settings import WebuiSettings
from ops import supervise
from ops.exits import Exit
from ops.follow import Interrupts
from ops.options import default_of, load_settings, redis_option
from ops.ports import listen
from workers.hermes.settings import HermesSettings
from workers.llm.settings import LlmSettings, VendorKeys
from workers.monitoring import monitored
from workers.remote.settings import RemoteSettings
from workers.tasks.checkpoints import Checkpoints
from workers.tasks.hosts import note_host
from workers.tasks.runner import task_worker
from workers.worker import Worker

__all__ = ["serve", "worker"]

_log = logging.getLogger("runcast")
_AGAIN_AFTER = 2.0
_LEVELS = ("debug", "info", "warning", "error")


def _log_to_stderr(settings: Settings, service: str, *others: type[BaseSettings]) -> None:
    secrets = secrets_of(settings, *others)
    dictConfig(logging_config(settings.log_level, settings.log_format, secrets=secrets, service=service))


def _child_option(command: click.decorators.FC) -> click.decorators.FC:
    return click.option("--stop-with-stdin", is_flag=True, hidden=True, help="Stop when stdin ends.")(command)


def _level_option(command: click.decorators.FC) -> click.decorators.FC:
    return click.option("--log-level", type=click.Choice(_LEVELS), help="What is logged." + default_of("log_level"))(
        command
    )


@click.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on." + default_of("host"))
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes any." + default_of("port"))
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that share the port."
)
@click.option("--listen-fd", type=int, hidden=True, help="A listening socket that was inherited.")
@_level_option
@_child_option
@redis_option
def serve(
    host: str | None,
    port: int | None,
    workers: int,
    listen_fd: int | None,
    log_level: str | None,
    stop_with_stdin: bool,
    redis_url: str | None,
) -> Exit:
    """Serve runs over HTTP and SSE until SIGTERM or Ctrl-C, which end the open streams within RUNCAST_DRAIN seconds.

    Viewers reconnect by themselves, to this gateway or another one, and miss nothing.
    """
    settings = load_settings(redis_url, host=host, port=port, log_level=log_level)
    tracing.check(settings)
    urls.parse(settings.redis_url, settings.data_dir)  # what no store can mend is said before anything listens
    ArtifactStore(settings)
    sock = listen(settings.host, settings.port) if listen_fd is None else socket.socket(fileno=listen_fd)
    _log_to_stderr(settings, "runcast-gateway", WebuiSettings)
    if stop_with_stdin:
        supervise.stop_with_stdin()
    address = sock.getsockname()
    _log.info("listening on %s, port %d", address[0], address[1])
    # The gateway's processes read their settings from the environment.
    os.environ.update(RUNCAST_REDIS_URL=settings.redis_url, RUNCAST_HOST=settings.host, RUNCAST_PORT=str(address[1]))
    with contextlib.suppress(KeyboardInterrupt):
        server.serve(settings, sock, workers=workers, log_level=settings.log_level)
    return Exit.OK


@click.command()
@click.option(
    "--concurrency", type=click.IntRange(1, 1000), metavar="N", help="Runs at once." + default_of("concurrency")
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Serve /metrics, /healthz and /readyz there, on RUNCAST_HOST." + default_of("worker_metrics_port"),
)
@_level_option
@_child_option
@redis_option
def worker(
    concurrency: int | None,
    metrics_port: int | None,
    log_level: str | None,
    stop_with_stdin: bool,
    redis_url: str | None,
) -> Exit:
    """Take runs from the queue and execute them until SIGTERM or Ctrl-C.

    Then no new run is taken, and those that run get RUNCAST_WORKER_DRAIN seconds to end; a second signal stops them
    at once. Without a store it waits for one.
    """
    settings = load_settings(redis_url, concurrency=concurrency, worker_metrics_port=metrics_port, log_level=log_level)
    tracing.check(settings)
    port = settings.worker_metrics_port
    listener = None if port is None else listen(settings.host, port, option="--metrics-port")
    _log_to_stderr(settings, "runcast-worker", HermesSettings, LlmSettings, VendorKeys, RemoteSettings)
    if stop_with_stdin:
        supervise.stop_with_stdin()
    uvloop.run(_monitored(settings, listener))
    return Exit.OK


async def _monitored(settings: Settings, listener: socket.socket | None) -> None:
    """From the first moment on: a worker that waits for its store lives, and is not ready."""
    introduce()
    at_work: list[Worker] = []

    def ready() -> str | None:
        if not at_work:
            return "waiting for the store"
        return next((why for one in at_work if (why := one.not_ready) is not None), None)

    with tracing.tracing(settings, "runcast-worker"):
        async with monitored(listener, ready):
            await _work(settings, at_work)


async def _work(settings: Settings, at_work: list[Worker]) -> None:
    with Interrupts(signal.SIGINT, signal.SIGTERM) as interrupts:
        opening = asyncio.create_task(_open_when_there(settings))
        if await interrupts.race(opening) is not None:
            opening.cancel()
            await asyncio.wait({opening})
            return
        closing, broker = opening.result()
        async with closing:
            workers = [Worker(broker)]
            if settings.tasks:
                workers.append(task_worker(broker))
                await note_host(broker.store, Checkpoints(settings.tasks_path))
            at_work.extend(workers)
            working = asyncio.ensure_future(_until_drained(workers))
            while (arrived := await interrupts.race(working)) is not None:
                _log.info("%s: draining", arrived.name)
                for running in workers:
                    running.drain()


async def _until_drained(workers: Sequence[Worker]) -> None:
    """Whichever fails takes the others with it."""
    async with asyncio.TaskGroup() as group:
        for running in workers:
            group.create_task(running.run())


async def _open_when_there(settings: Settings) -> tuple[AsyncExitStack, Broker]:
    """A worker that starts before its store, as at boot, waits for it. What no waiting mends is raised."""
    while True:
        stack = AsyncExitStack()
        try:
            return stack, await stack.enter_async_context(api.open(settings=settings))
        except StoreUnavailable as error:
            _log.warning("waiting for the store: %s", error)
            await asyncio.sleep(_AGAIN_AFTER)
