"""``runcast up``: everything on this machine in one terminal: store, worker, gateway, page, and a run to look at."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import click

from broker import api
from broker.errors import Conflict, RuncastError
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from ops.exits import Exit
from ops.follow import Follower, Interrupts
from ops.hermes import Hermes, find
from ops.options import default_of, load_settings, redis_option
from ops.ports import get_status, listen, listen_near
from ops.render import Watched
from ops.run import command_name
from ops.supervise import Child, command_of
from ops.terminal import Terminal, printable

__all__ = ["up"]

_READY_WITHIN = 60.0
_LOOK_EVERY = 0.1
_PROMPT = "Introduce yourself in two sentences, then run one harmless shell command and say what it printed."


@click.command()
@click.option("--host", metavar="ADDRESS", help="Address of the page." + default_of("host"))
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"Its port.{default_of('port')[:-1]}, or the next that is free]"
)
@click.option(
    "--concurrency", type=click.IntRange(1, 1000), metavar="N", help="Runs at once." + default_of("concurrency")
)
@click.option(
    "--demo/--no-demo", default=True, help="A run to look at: by Hermes if one is configured here, else scripted."
)
@click.option("--exit-after-demo", is_flag=True, help="Stop after the demo; the exit code tells how it went.")
@redis_option
def up(
    host: str | None,
    port: int | None,
    concurrency: int | None,
    demo: bool,
    exit_after_demo: bool,
    redis_url: str | None,
) -> Exit:
    """Start Redis (the embedded one, unless --redis names another), a worker, and the gateway with its page.

    Ctrl-C stops all of it; runs are kept in the data directory (RUNCAST_DATA_DIR).
    """
    settings = load_settings(redis_url, host=host, port=port, concurrency=concurrency)
    return asyncio.run(_Up(settings, chosen_port=port is not None).run(demo=demo, stay=not exit_after_demo))


class _Up:
    def __init__(self, settings: Settings, *, chosen_port: bool) -> None:
        self._terminal = Terminal()
        self._settings = settings
        # Held here and inherited by the gateway: nobody else can take the port, also while a gateway is started again.
        self._listener = self._listen(chosen_port)
        self._port: int = self._listener.getsockname()[1]
        self._url = settings.redis_url
        self._runner = "hermes"
        """Who did the demo, for the commands to try next."""

    def _listen(self, chosen: bool) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        try:
            return listen(host, port)
        except Conflict:
            if chosen:
                raise
        listener = listen_near(host, port + 1)
        self._terminal.warn(f"port {port} is in use; taking {listener.getsockname()[1]} (--port chooses one)")
        return listener

    async def run(self, *, demo: bool, stay: bool) -> Exit:
        """Start, show, stay, stop. A stop that was asked for is a success."""
        with Interrupts(signal.SIGINT, signal.SIGTERM) as interrupts:
            self._terminal.styled(f"runcast {version('runcast')}", "bold")
            async with api.open(settings=self._settings) as broker:
                self._terminal.line(f"store    {broker.store.shown}")
                async with self._children() as watching:
                    work = asyncio.create_task(self._work(broker, watching, demo=demo, stay=stay))
                    try:
                        if await interrupts.race(work) is None:
                            return work.result()
                    finally:
                        work.cancel()
                        await asyncio.wait({work})
                        stopping = asyncio.create_task(self._force(interrupts))
                        self._terminal.note("stopping; Ctrl-C again stops at once")
                stopping.cancel()
        return Exit.OK

    async def _force(self, interrupts: Interrupts) -> None:
        """The second signal: no grace for the runs, but the worker still writes their fences. The third: for nobody."""
        await interrupts.wait()
        worker, gateway = self._all
        worker.terminate()
        gateway.kill()
        await interrupts.wait()
        worker.kill()

    async def _work(self, broker: api.Broker, watching: asyncio.Future[Exit], *, demo: bool, stay: bool) -> Exit:
        await self._until_ready(watching)
        self._terminal.line(f"page     {self._page}")
        hermes = await find()
        self._runner = "hermes" if hermes.usable else "scripted"
        ok, run_id = await self._demo(broker, hermes) if demo else (True, None)
        if not stay:
            return Exit.OK if ok else Exit.FAILED
        self._next_commands(run_id)
        return await watching

    @property
    def _page(self) -> str:
        host = self._settings.host
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}/"

    # The children.

    @asynccontextmanager
    async def _children(self) -> AsyncIterator[asyncio.Future[Exit]]:
        """Worker and gateway; the future ends when one of them cannot be kept running."""
        environment = {**os.environ, "RUNCAST_REDIS_URL": self._url, "RUNCAST_DATA_DIR": str(self._settings.data_dir)}
        level = ("--log-level", "warning")
        run_at_once = ("--concurrency", str(self._settings.concurrency))
        listener = self._listener.fileno()
        serve = command_of("serve", "--host", self._settings.host, "--listen-fd", str(listener), *level)
        worker = Child("worker", command_of("worker", *run_at_once, *level), environment, self._say)
        gateway = Child("gateway", serve, environment, self._say, pass_fds=(listener,))
        self._all = (worker, gateway)
        watching = None
        try:
            for child in self._all:
                await child.start()
            watching = asyncio.ensure_future(self._watch())
            yield watching
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.wait({watching})
            self._listener.close()
            # Together: the worker's drain does not wait for the gateway's.
            graces = (self._settings.worker_drain + 10, self._settings.drain + 5)
            await asyncio.gather(*(child.stop(grace) for child, grace in zip(self._all, graces, strict=True)))

    async def _watch(self) -> Exit:
        tasks = {asyncio.ensure_future(child.watch()): child for child in self._all}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._terminal.error(f"the {tasks[task].name} keeps ending (code {task.result()}): giving up")
            return Exit.FAILED
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _say(self, name: str, text: str) -> None:
        self._terminal.err.print(f"{name:<8} {printable(text)}", style="dim")

    async def _until_ready(self, watching: asyncio.Future[Exit]) -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._settings.host, self._settings.host)
        loop = asyncio.get_running_loop()
        until = loop.time() + _READY_WITHIN
        while await get_status(host, self._port, "/readyz") != 200:
            if watching.done() or loop.time() > until:
                raise RuncastError(f"the gateway did not get ready on port {self._port}: its messages stand above")
            await asyncio.sleep(_LOOK_EVERY)

    # The demo.

    async def _demo(self, broker: api.Broker, hermes: Hermes) -> tuple[bool, str | None]:
        if hermes.usable:
            self._terminal.line(
                f"agent    Hermes {hermes.found.version}, mode {hermes.found.mode}, at {hermes.found.path}"
            )
            ok, run_id = await self._show(broker, "hermes", _PROMPT)
            if ok:
                return True, run_id
            self._terminal.warn("Hermes could not do it; here is the scripted agent")
            self._runner = "scripted"
        else:
            why = _why_not(hermes)
            self._terminal.line(f"agent    scripted ({why})")
        return await self._show(broker, "scripted", "Show me what Runcast does.")

    async def _show(self, broker: api.Broker, runner: str, message: str) -> tuple[bool, str]:
        request = RunRequest(runner=runner, input=RunInput(message=message))
        record, _ = await broker.runs.create(request)
        self._terminal.line(f"run      {record.run_id}\n")
        follower = Follower(broker, record.run_id, Watched(self._terminal))
        try:
            return await follower.follow() == "completed", record.run_id
        finally:
            follower.close()
            self._terminal.line()

    def _next_commands(self, run_id: str | None) -> None:
        name, say = command_name(), self._terminal.line
        shown = run_id or "RUN"
        say(f"Open {self._page} — or, in another terminal:\n")
        for name_of, value in self._elsewhere():
            say(f"  export {name_of}={shlex.quote(value)}")
        runner = "" if self._runner == "hermes" else f" --runner {self._runner}"
        say(f'  {name} run "Tell me about streams"{runner}')
        say(f"  {name} runs")
        say(f"  {name} replay {shown} --speed 1")
        say(f"  curl -N '{self._page}v1/runs/{shown}/stream?modes=messages'")
        say("\nCtrl-C stops everything; runs are kept.")

    def _elsewhere(self) -> list[tuple[str, str]]:
        """What another terminal needs to mean this store and these files; a URL with a password is not printed."""
        directory = self._settings.data_dir
        kind, _, rest = self._url.partition(":")
        found = []
        if directory != Settings.model_construct().data_dir:
            found.append(("RUNCAST_DATA_DIR", str(directory.absolute())))
        if kind != "embedded":
            found.append(("RUNCAST_REDIS_URL", "…" if {"@", "?"} & set(self._url) else self._url))
        elif rest:
            found.append(("RUNCAST_REDIS_URL", f"embedded:{Path(rest.removeprefix('//')).expanduser().absolute()}"))
        return found


def _why_not(hermes: Hermes) -> str:
    """Why the demo is not by Hermes, in a few words; ``runcast doctor`` has more."""
    if hermes.found.path is None:
        return "no Hermes on PATH"
    if not hermes.found.mode:
        return f"{hermes.found.path} does not run: see {command_name()} doctor"
    return f"Hermes is not configured: no config.yaml in {hermes.home}"
