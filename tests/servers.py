"""Servers for the tests: real ones that can be stopped, killed, paused and promoted, and faulty ones.

Everything started here dies with the test process, however that ends (Linux: parent death signal).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Certificates", "Proxy", "RedisServer", "alive", "eventually", "free_port", "redis_binary", "silent_host"]

_PR_SET_PDEATHSIG = 1
_LISTENERS = range(10_100, 30_000)
_handed_out: set[int] = set()
_chance = random.SystemRandom()
"""Hypothesis seeds the other one, equally in every process."""


def redis_binary() -> str | None:
    """Debian's redis-server, or None."""
    return shutil.which("redis-server")


def free_port() -> int:
    """A port to listen on, also later and again after a restart.

    Not one that the kernel would give: it gives those (from 32768 on) to any outgoing connection too, before the server
    is there or while it is down. No port twice in one process; others choose at random as well.
    """
    while True:
        port = _chance.choice(_LISTENERS)
        if port in _handed_out:
            continue
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            _handed_out.add(port)
            return port


def alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def eventually(condition: Callable[[], object], timeout: float = 30.0, *, step: float = 0.02) -> None:
    """Return once the condition holds; an AssertionError after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not true within {timeout} s"
        await asyncio.sleep(step)


def die_with_parent() -> None:
    """For ``preexec_fn``: SIGKILL for this process when the test process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True)
class Certificates:
    """A certificate authority and one server certificate for localhost and 127.0.0.1, as files."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def create(cls, directory: Path) -> Certificates:
        import trustme

        authority = trustme.CA()
        issued = authority.issue_cert("localhost", "127.0.0.1")
        made = cls(directory / "ca.pem", directory / "server.pem", directory / "server.key")
        authority.cert_pem.write_to_path(made.ca)
        made.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(made.key)
        return made


class RedisServer:
    """One redis-server with an append-only file in ``directory``; port and data survive stop, kill and restart."""

    def __init__(
        self,
        directory: Path,
        *,
        binary: str | None = None,
        certificates: Certificates | None = None,
        options: Sequence[str] = (),
    ) -> None:
        found = binary or redis_binary()
        assert found, "there is no redis-server"
        self.binary = found
        self.directory = directory
        self.certificates = certificates
        self.options = list(options)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._master: RedisServer | None = None

    @property
    def url(self) -> str:
        if self.certificates:
            return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self.certificates.ca}"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 40.0) -> RedisServer:
        """Start it and return once it answers PING (so, after it loaded its data)."""
        assert not self.running
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        self._wait(lambda: self.command("PING") == b"PONG", timeout)
        return self

    def stop(self) -> None:
        """SIGTERM and wait: an orderly stop."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL and wait."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, kill: bool = False) -> None:
        """The same port and data again."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def replica_of(self, master: RedisServer, timeout: float = 40.0) -> None:
        """Follow ``master``; returns once the first copy is complete and the link is up."""
        self._master = master
        self.command("REPLICAOF", "127.0.0.1", str(master.port))
        self._wait(lambda: b"master_link_status:up" in self.info("replication"), timeout)

    def promote(self) -> None:
        """Become a master with what was copied so far."""
        self._master = None
        self.command("REPLICAOF", "NO", "ONE")

    def info(self, section: str) -> bytes:
        reply = self.command("INFO", section)
        assert isinstance(reply, bytes)
        return reply

    def command(self, *args: str | bytes) -> object:
        """One command over a connection of its own, blocking. Errors of the server raise RuntimeError."""
        import hiredis

        reader = hiredis.Reader(replyError=RuntimeError)
        with self._connect() as sock:
            sock.sendall(hiredis.pack_command(tuple(args)))  # type: ignore[arg-type]  # its stub allows one argument
            while (reply := reader.gets()) is False:
                chunk = sock.recv(65536)
                if not chunk:
                    raise ConnectionError("the server closed the connection")
                reader.feed(chunk)
        if isinstance(reply, RuntimeError):
            raise reply
        return reply

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=10.0)
        if not self.certificates:
            return sock
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        return context.wrap_socket(sock, server_hostname="127.0.0.1")

    def _command(self) -> list[str]:
        command = [self.binary, "--bind", "127.0.0.1", "--dir", str(self.directory), "--logfile", "server.log"]
        # Without fsync every write is with the kernel before its reply is sent, so a killed server loses nothing;
        # with everysec a slow disk holds writes up, for 2 s at most.
        command += ["--appendonly", "yes", "--appendfsync", "no", "--save", "", "--daemonize", "no"]
        command += ["--repl-diskless-sync-delay", "0", "--enable-debug-command", "local"]
        return [*command, *self._listening(), *self.options]

    def _listening(self) -> list[str]:
        if not self.certificates:
            return ["--port", str(self.port)]
        options = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
        options += ["--tls-cert-file", str(self.certificates.cert), "--tls-key-file", str(self.certificates.key)]
        return [*options, "--tls-ca-cert-file", str(self.certificates.ca)]

    def _wait(self, condition: Callable[[], bool], timeout: float) -> None:
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError, RuntimeError):
                if condition():
                    return
            assert self.running, f"redis-server ended: {self._log()}"
            assert time.monotonic() < end, f"redis-server is not ready: {self._log()}"
            time.sleep(0.01)

    def _log(self) -> str:
        log = self.directory / "server.log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else "(no log)"

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Proxy:
    """A TCP proxy in the test's event loop: between a store and its server, to cut, to silence, to lead elsewhere.

    ``target`` may be changed at any time (a promoted replica); it holds for connections made from then on.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.refuse = False
        """Close new connections at once."""
        self.drop_replies = False
        """Take requests to the server, and let no reply back: applied, but its reply is lost."""
        self.accepted = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """Close every open connection, both sides."""
        for writer in list(self._open):
            writer.transport.abort()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refuse:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, up_writer}
        try:
            await asyncio.gather(self._copy(reader, up_writer, False), self._copy(up_reader, writer, True))
        finally:
            self._open -= {writer, up_writer}
            writer.transport.abort()
            up_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if replies and self.drop_replies:
                    continue
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def silent_host() -> AsyncIterator[str]:
    """The URL of a host that accepts connections and never answers."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
