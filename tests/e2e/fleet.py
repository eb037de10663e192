"""Gateways behind a real nginx with the shipped configuration, and viewers that come through it."""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.settings import Settings
from tests.e2e.crowd import Crowd, Spectator
from tests.e2e.processes import Gateway, environment, http_json
from tests.servers import free_port
from tests.shipped_nginx import SHIPPED, ShippedNginx, unprivileged

__all__ = ["Fleet", "Nginx", "Visitor"]

_SERVERS = re.compile(r"( *server )127\.0\.0\.1:8701( [^;]*;\n) *server 127\.0\.0\.1:8702 [^;]*;\n")


class Nginx(ShippedNginx):
    """With any number of gateways, and others for some ``changed`` directives."""

    def __init__(self, directory: Path, gateways: list[int], changed: Mapping[str, str] | None = None) -> None:
        self.port, self.tls_port = free_port(), free_port()
        self._directory, self._process = directory, None
        directory.mkdir(parents=True, exist_ok=True)
        self._config = unprivileged(directory, _text(gateways, changed or {}), {}, self.port, self.tls_port)

    def answers(self) -> Counter[int]:
        """How often it has answered with each status so far."""
        return Counter(int(line.split()[4]) for line in self.requests)


def _text(gateways: list[int], changed: Mapping[str, str]) -> str:
    servers = "".join(rf"\g<1>127.0.0.1:{port}\g<2>" for port in gateways)
    text, found = _SERVERS.subn(servers, SHIPPED.read_text())
    assert found == 1, "the shipped configuration has two gateways, side by side"
    for shipped, here in changed.items():
        assert text.count(f" {shipped};") == 1, shipped
        text = text.replace(f" {shipped};", f" {here};")
    return text


class Fleet:
    """``count`` gateways behind nginx. Enter it; leaving kills what runs."""

    def __init__(
        self, url: str, settings: dict[str, Any], directory: Path, *, count: int = 3, nginx: Mapping[str, str]
    ) -> None:
        self.url, self.directory = url, directory
        self.settings = Settings(**settings)
        self.env = environment(url, **settings)
        self.gateways = [self._gateway(free_port()) for _ in range(count)]
        self._nginx_changed = nginx

    def _gateway(self, port: int) -> Gateway:
        return Gateway(self.env, self.directory / f"gateway{port}.log", port=port)

    async def __aenter__(self) -> Fleet:
        try:
            for gateway in self.gateways:
                await gateway.ready()
            ports = [gateway.port for gateway in self.gateways]
            self.nginx = Nginx(self.directory / "nginx", ports, self._nginx_changed)
            await asyncio.to_thread(self.nginx.start)
        except BaseException:
            self._kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.nginx.stop()
        self._kill()

    def _kill(self) -> None:
        for gateway in self.gateways:
            gateway.kill()

    @property
    def output(self) -> str:
        return "".join(gateway.output for gateway in self.gateways)

    def signal(self, number: int, what: signal.Signals) -> None:
        self.gateways[number].signal(what)

    async def drain(self, number: int) -> None:
        """SIGTERM, and its orderly end."""
        self.gateways[number].signal(signal.SIGTERM)
        assert await self.gateways[number].ended(30) == 0, self.gateways[number].output

    async def start(self, number: int) -> None:
        """Again, on its port; it is ready, and nginx knows."""
        self.gateways[number] = self._gateway(self.gateways[number].port)
        await self.gateways[number].ready()
        await asyncio.sleep(2.0)  # fail_timeout, in whole seconds: what docs/scaling.md says of rolling restarts
        for _ in self.gateways:
            await http_json(self.nginx.port, "GET", "/healthz")

    def crowd(self, **size: Any) -> Crowd:
        return Crowd(self.url, self.settings, [self.nginx.port], spectator=Visitor, **size)


class Visitor(Spectator):
    """A viewer behind a proxy, which frames anew: comes back when it was told to, with jitter.

    ``sent_away``: responses that a gateway ended, between two frames and with a ``retry:`` of their own; ``torn``:
    those that broke off; ``in_vain``: those of nginx itself, which say no more than when to come back.
    """

    _hint = re.compile(rb"(?:^|\n)retry: ([0-9]+)\n(?=\n)")

    def __init__(self, run_id: str, ports: list[int], *, after: int) -> None:
        super().__init__(run_id, ports, after=after)
        self.hints: list[int] = []
        self.sent_away = self.torn = self.in_vain = 0
        self._rng = random.Random(after)

    async def _pause(self) -> None:
        hint = self.hints[-1] / 1000 if self.hints else self.retry
        await asyncio.sleep(hint * self._rng.uniform(0.5, 1.5))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        if sized := re.search(rb"(?i)\ncontent-length: ([0-9]+)\r", self.head):
            self._take_whole(await reader.readexactly(int(sized[1])))
            assert self._hinted == 1
            self.in_vain += 1
            return
        rest, hints = b"", 0
        self.torn += 1  # unless it turns out otherwise
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            part = await reader.readexactly(size + 2)
            rest = self._take_whole(rest + part[:-2])
            hints += self._hinted
            if self.ended:
                self.torn -= 1
                return
        assert not rest.removeprefix(b": hb\n"), rest
        assert hints == 2, f"{hints} hints: one at the start of a response and one at its end"
        self.torn -= 1
        self.sent_away += 1

    def _take_whole(self, wire: bytes) -> bytes:
        """Take the frames that are there whole: → the rest."""
        cut = wire.rfind(b"\n\n") + 2 if b"\n\n" in wire else 0
        wire, rest = wire[:cut], wire[cut:]
        hints = self._hint.findall(wire)
        self._hinted = len(hints)
        self.hints += map(int, hints)
        for seq, event, body in self._event.findall(wire):
            if event == b"end":
                self.ended = True
                break
            self._take_one(seq, event, body)
        return rest
