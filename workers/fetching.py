"""Fetches what somebody else's URL leads to, within limits, and from nowhere that the worker alone can reach.

- The address is checked where the connection is made, and the connection goes to the address that was checked: a name
  that resolves to another one a moment later (DNS rebinding), or after a redirect, gains nothing.
- The body is taken as it comes. No encoding is asked for and none is undone: an encoded body is refused, so nothing
  grows on the way to the disk; archives are files like others.
- No proxy, no cookies, no credentials: nothing of the worker's environment goes with a request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import httpcore
import httpx

from broker.artifact_names import shown
from broker.artifacts import allows_type, url_fault
from broker.settings import Settings
from workers.addresses import is_allowed, networks
from workers.runner import RunnerFailed

__all__ = ["Fetched", "Fetcher", "Resolve"]

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port → addresses."""
_CONNECT, _READ = 10.0, 20.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_HEADERS = [(b"User-Agent", b"runcast"), (b"Accept", b"*/*"), (b"Accept-Encoding", b"identity")]


class Fetched(NamedTuple):
    """``size`` in bytes; ``type`` is what the server said, empty where it said nothing."""

    size: int
    type: str


class _RefusedAddress(Exception):
    pass


class Fetcher:
    """One a worker. Nothing is kept between two fetches, connections neither."""

    def __init__(self, settings: Settings, resolve: Resolve | None = None) -> None:
        self._settings = settings
        self._network = _CheckedNetwork(settings, resolve or _resolve)
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, write: Callable[[bytes], object], limit: int) -> Fetched:
        """Gives the body to ``write``, piece by piece; what was written before an error is void. ``limit`` in bytes.

        Raises ``RunnerFailed`` with a code of docs/artifacts.md. The caller bounds the time.
        """
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx.create_ssl_context)
        async with httpcore.AsyncConnectionPool(ssl_context=self._tls, network_backend=self._network) as pool:
            for _ in range(self._settings.inbound_redirects + 1):
                answer = await self._ask(pool, url, write, limit)
                if isinstance(answer, Fetched):
                    return answer
                url = _followed(url, answer)
        most = self._settings.inbound_redirects
        raise RunnerFailed("artifact_redirect_refused", f"the URL leads on and on: {most} redirects are followed")

    async def _ask(
        self, pool: httpcore.AsyncConnectionPool, url: str, write: Callable[[bytes], object], limit: int
    ) -> Fetched | str:
        """The body's size and type, or where the answer leads on to."""
        timeouts = {"connect": _CONNECT, "read": _READ, "write": _READ, "pool": _CONNECT}
        host = urlsplit(url).hostname
        try:
            async with pool.stream("GET", url, headers=_HEADERS, extensions={"timeout": timeouts}) as answer:
                headers = {name.lower(): value.decode("latin-1").strip() for name, value in answer.headers}
                if answer.status in _REDIRECTS and headers.get(b"location"):
                    return headers[b"location"]
                self._check(answer.status, headers, limit)
                size = await _copied(answer.aiter_stream(), write, limit)
                return Fetched(size, _type_of(headers))
        except _RefusedAddress as error:
            raise RunnerFailed("artifact_address_refused", str(error)) from error
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            why = str(error) or type(error).__name__
            raise RunnerFailed("artifact_fetch_failed", f"{host}: {why}"[:500], retryable=True) from error
        except (httpcore.UnsupportedProtocol, ValueError) as error:
            raise RunnerFailed("artifact_fetch_failed", f"{host}: {error}"[:500]) from error

    def _check(self, status: int, headers: dict[bytes, str], limit: int) -> None:
        if status != 200:
            message = f"the URL was answered with status {status}"
            raise RunnerFailed("artifact_fetch_failed", message, retryable=status in _AGAIN)
        if (encoding := headers.get(b"content-encoding", "").lower()) not in ("", "identity"):
            message = f"the body is encoded ({shown(encoding)}) though that was not asked for: nothing is unpacked here"
            raise RunnerFailed("artifact_encoding_refused", message)
        if (declared := headers.get(b"content-length", "")).isdigit() and int(declared[:20]) > limit:
            raise _too_big(limit)
        kind, allowed = _type_of(headers), self._settings.inbound_types
        if kind not in ("", "application/octet-stream") and not allows_type(allowed, kind):
            message = f"the URL leads to something of type {shown(kind)}: allowed is {allowed}"
            raise RunnerFailed("artifact_type_refused", message)


async def _copied(pieces: object, write: Callable[[bytes], object], limit: int) -> int:
    size = 0
    async for piece in pieces:  # type: ignore[attr-defined]
        size += len(piece)
        if size > limit:
            raise _too_big(limit)
        write(piece)
    return size


def _type_of(headers: dict[bytes, str]) -> str:
    return headers.get(b"content-type", "").partition(";")[0].strip().lower()


def _too_big(limit: int) -> RunnerFailed:
    return RunnerFailed("artifact_too_big", f"the URL leads to more than the {limit} bytes that are allowed")


def _followed(url: str, location: str) -> str:
    """Where a redirect leads. Raises ``RunnerFailed`` where that may not be asked for, or not after ``url``."""
    try:
        target = urljoin(url, location).partition("#")[0]
        fault = url_fault(target)
    except ValueError as error:
        fault = f"cannot be read: {error}"
    if not fault and (urlsplit(url).scheme, urlsplit(target).scheme) == ("https", "http"):
        fault = "leaves TLS"
    if fault:
        raise RunnerFailed("artifact_redirect_refused", f"the URL leads on to one that {fault}")
    return target


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves, checks, and connects to what was checked."""

    def __init__(self, settings: Settings, resolve: Resolve) -> None:
        self._named, self._resolve = networks(settings.inbound_networks), resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                found = await self._resolve(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout("its name was not resolved in time") from error
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"its name cannot be resolved: {error}") from error
        allowed = [address for address in found if is_allowed(address, self._named)]
        if not allowed:
            raise _RefusedAddress(f"{host} is at {', '.join(found[:3])}, which is not public: {_HOW}")
        failure: Exception = httpcore.ConnectError("no address")
        for address in allowed:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise _RefusedAddress("a socket file is no address")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_HOW = "an operator may allow its network with RUNCAST_INBOUND_NETWORKS"


async def _resolve(host: str, port: int) -> Sequence[str]:
    """As the system does it, so that every way to write an address (``0x7f.1``) gives what would be connected to."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
