"""Bytes of one response over HTTP, read no faster than they are taken, and let go of at once.

TLS is verified (``SSL_CERT_FILE`` names other authorities), proxies come from the usual variables, and redirects are
not followed: a key goes to no host that it was not given for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from types import TracebackType

import httpx

from broker import tracing
from workers.llm.endpoints import shown
from workers.llm.failures import CallFailed, of_status, unreached
from workers.llm.requests import HttpCall

__all__ = ["Reading", "Transport"]

_ERROR_BODY_MAX = 65_536


class Transport:
    """One HTTP client of a worker, its connections kept and shared by runs. Made at the first call; ``aclose`` it."""

    def __init__(self, *, connect: float) -> None:
        self._timeout = httpx.Timeout(None, connect=connect)
        self._client: httpx.AsyncClient | None = None
        self._making = asyncio.Lock()

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def chunks(self, call: HttpCall) -> AsyncGenerator[bytes, None]:
        """Send the call; its decoded body, piece by piece as it arrives. Closed early, the connection is.

        Raises ``CallFailed``: no connection, an answer other than 200, or (``incomplete_stream``) one that broke off.
        """
        client = await self._ready()
        started = False
        try:
            async with client.stream("POST", call.url, content=call.body, headers=call.headers) as response:
                if response.status_code != 200:
                    raise await _refused(response)
                async for chunk in response.aiter_bytes():
                    started = True
                    yield chunk
        except httpx.HTTPError as error:
            raise _broken(call, error, started=started) from None  # its request holds the key

    async def _ready(self) -> httpx.AsyncClient:
        async with self._making:
            if self._client is None:
                # It logs each request with its whole URL, and a base URL's query may hold a key.
                logging.getLogger("httpx").setLevel(logging.WARNING)
                # Reading the authorities from the disk takes long enough to be noticed by other runs.
                context = await asyncio.to_thread(httpx.create_ssl_context)
                self._client = httpx.AsyncClient(
                    verify=context,
                    timeout=self._timeout,
                    follow_redirects=False,
                    event_hooks=tracing.http_hooks(),
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                    # A compressed stream would be held back by whoever compresses it.
                    headers={"accept-encoding": "identity", "user-agent": "runcast"},
                )
            return self._client


async def _refused(response: httpx.Response) -> CallFailed:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) >= _ERROR_BODY_MAX:
            break
    return of_status(response.status_code, bytes(body[:_ERROR_BODY_MAX]), response.headers, datetime.now(UTC))


def _broken(call: HttpCall, error: httpx.HTTPError, *, started: bool) -> CallFailed:
    why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if started and not isinstance(error, httpx.DecodingError):
        return CallFailed("incomplete_stream", f"the response broke off: {why}", retryable=True, again=True)
    failed = unreached(shown(call.url), why)
    if isinstance(error, (httpx.DecodingError, httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        failed.again = failed.retryable = False
    return failed


class Reading:
    """One response, read by a task of its own: ``stop`` lets go of the server at once, whatever the reader is doing.

    ``async with Reading(…) as reading``, then ``next`` until it gives ``None``. Nothing is read from the socket between
    a chunk and the next ``next``.
    """

    def __init__(self, transport: Transport, call: HttpCall) -> None:
        self._chunks = transport.chunks(call)
        self._asked = asyncio.Semaphore(0)
        self._answers: asyncio.Queue[bytes | CallFailed | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Reading:
        self._task = asyncio.create_task(self._read(), name="model response")
        self._task.add_done_callback(lambda _: self._answers.put_nowait(None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def stop(self) -> None:
        """Close the request. ``next`` gives ``None`` from now on."""
        if self._task is not None:
            self._task.cancel()

    async def next(self, until: float | None) -> bytes | None:
        """The next piece; ``None``: the response has ended, or was stopped.

        ``until`` is a time of the loop's clock. Raises ``TimeoutError`` then, and ``CallFailed`` as ``chunks`` does.
        """
        self._asked.release()
        async with asyncio.timeout_at(until):
            answer = await self._answers.get()
        if isinstance(answer, CallFailed):
            raise answer
        return answer

    async def _read(self) -> None:
        try:
            async with contextlib.aclosing(self._chunks) as chunks:
                await self._asked.acquire()
                async for chunk in chunks:
                    self._answers.put_nowait(chunk)
                    await self._asked.acquire()
        except CallFailed as failed:
            self._answers.put_nowait(failed)
        except Exception as error:
            why = f"{type(error).__name__} while the response was read"
            self._answers.put_nowait(CallFailed("provider_error", why, retryable=True))
