"""A runner service over HTTP: one JSON request, one JSON answer.

TLS is verified, proxies come from the usual variables, and redirects are not followed: the key goes to no other host.

| what was seen | code | asked again |
|---|---|---|
| no connection, an answer that broke off, 408, 5xx | ``remote_unavailable`` | yes |
| HTTP 429 | ``remote_unavailable`` | yes, after its ``Retry-After`` |
| HTTP 401, 403 | ``remote_auth`` | no |
| HTTP 404, 410 | ``remote_run_lost`` | no |
| any other status, redirects among them | ``remote_refused`` | no |
| an answer that is no JSON object, or too long | ``remote_unreadable`` | no |
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from broker import tracing
from workers.llm.failures import Secrets, retry_after
from workers.remote.settings import RemoteSettings
from workers.runner import RunnerFailed

__all__ = ["RunnerService", "ServiceFailed"]

_SAID_MAX = 500
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_LATER = frozenset({408, 429, 500, 502, 503, 504})
_NOT_STARTED = frozenset({429, 503})
"""What says that a request was not taken up."""


class ServiceFailed(RunnerFailed):
    """``again``: the same request may do better. ``sent``: it may have had its effect. ``wait_s``: when the service
    says to come back."""

    def __init__(
        self, code: str, message: str, *, again: bool = False, sent: bool = True, wait_s: float | None = None
    ) -> None:
        super().__init__(code, message, retryable=again)
        self.again, self.sent, self.wait_s = again, sent, wait_s


class RunnerService:
    """The service of ``settings``. One HTTP client, made at the first request and shared by runs; ``aclose`` it.

    Every call raises ``ServiceFailed``.
    """

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._secrets = Secrets([settings.key.get_secret_value()])
        self._client: httpx.AsyncClient | None = None
        self._making = asyncio.Lock()

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def start(self, body: Mapping[str, Any], *, key: str) -> dict[str, Any]:
        """``POST /v1/runs``. ``key`` is the same for each try of one run (``Idempotency-Key``)."""
        return await self._call("POST", "/v1/runs", body, {"idempotency-key": key})

    async def events(self, run_id: str, cursor: str | None) -> dict[str, Any]:
        """``GET /v1/runs/{id}/events?cursor=``, the cursor as it is; none where it is ``None``."""
        query = "" if cursor is None else f"?cursor={quote(cursor, safe='')}"
        return await self._call("GET", f"{_path(run_id)}/events{query}")

    async def status(self, run_id: str) -> dict[str, Any]:
        return await self._call("GET", _path(run_id))

    async def cancel(self, run_id: str) -> None:
        await self._call("POST", f"{_path(run_id)}/cancel", {})

    async def approve(self, run_id: str, approval_id: str, choice: str) -> None:
        await self._call("POST", f"{_path(run_id)}/approval", {"choice": choice, "approval_id": approval_id})

    async def clarify(self, run_id: str, clarify_id: str, response: str) -> None:
        path = f"{_path(run_id)}/clarifications/{quote(clarify_id, safe='')}/respond"
        await self._call("POST", path, {"response": response})

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Polls have no span of their own: there are too many, and they say nothing."""
        if method == "GET":
            return await self._asked(method, path, body, headers)
        what = path.rpartition("/")[2]
        with tracing.span("remote.call", kind="client", http__request__method=method, runcast__what=what):
            return await self._asked(method, path, body, headers)

    async def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None
    ) -> dict[str, Any]:
        client = await self._ready()
        content = None if body is None else msgspec.json.encode(body)
        sending = {"content-type": "application/json"} if body is not None else {}
        try:
            async with client.stream(
                method, self._settings.url + path, content=content, headers={**sending, **(headers or {})}
            ) as response:
                answer = await self._bounded(response)
        except httpx.HTTPError as error:
            raise self._unreached(error) from None  # its request holds the key
        if not 200 <= response.status_code < 300:
            raise self._refused(response, answer)
        return _object(answer)

    async def _bounded(self, response: httpx.Response) -> bytes:
        answer = bytearray()
        async for chunk in response.aiter_bytes():
            answer += chunk
            if len(answer) > self._settings.response_max_bytes:
                raise ServiceFailed("remote_unreadable", "an answer is longer than REMOTE_RESPONSE_MAX_BYTES")
        return bytes(answer)

    async def _ready(self) -> httpx.AsyncClient:
        async with self._making:
            if self._client is None:
                logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request, and polls are many
                # Reading the authorities from the disk takes long enough to be noticed by other runs.
                context = await asyncio.to_thread(httpx.create_ssl_context)
                settings = self._settings
                headers = {"accept": "application/json", "user-agent": "runcast"}
                if key := settings.key.get_secret_value():
                    headers["authorization"] = f"Bearer {key}"
                self._client = httpx.AsyncClient(
                    verify=context,
                    timeout=httpx.Timeout(settings.timeout, connect=settings.connect, pool=None),
                    follow_redirects=False,
                    event_hooks=tracing.http_hooks(),
                    limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                    headers=headers,
                )
            return self._client

    def _unreached(self, error: httpx.HTTPError) -> ServiceFailed:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = self._secrets.scrub(f"the runner service does not answer: {why}")[:_SAID_MAX]
        if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
            return ServiceFailed("remote_refused", message, sent=False)
        return ServiceFailed("remote_unavailable", message, again=True, sent=not isinstance(error, _NOT_SENT))

    def _refused(self, response: httpx.Response, body: bytes) -> ServiceFailed:
        status = response.status_code
        said = self._secrets.scrub(body[:_SAID_MAX].decode("utf-8", "replace")).strip()
        message = f"the runner service answers {status}" + (f": {said}" if said else "")
        if status in _LATER:
            wait_s = retry_after(response.headers, datetime.now(UTC))
            sent = status not in _NOT_STARTED
            return ServiceFailed("remote_unavailable", message, again=True, sent=sent, wait_s=wait_s)
        codes = {401: "remote_auth", 403: "remote_auth", 404: "remote_run_lost", 410: "remote_run_lost"}
        return ServiceFailed(codes.get(status, "remote_refused"), message)


def _path(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"


def _object(answer: bytes) -> dict[str, Any]:
    try:
        found = json.loads(answer.decode("utf-8", "replace") or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ServiceFailed("remote_unreadable", "the runner service's answer is no JSON object")
    return found
