"""Where files of runs are kept: a directory, or any object store, by one URL (``RUNCAST_ARTIFACT_STORE``).

| URL | where |
|---|---|
| ``file:`` | ``artifacts`` below the data directory |
| ``file:/srv/artifacts`` | that directory, shared by all gateways and workers |
| ``s3://bucket/prefix?endpoint=…&region=…`` | S3, or what speaks like it |
| ``gs://bucket/prefix``, ``az://container/prefix`` | Google's, Azure's |

Keys are made of run ids and digests only, never of names that somebody chose. What lies under a key never changes: it
is named by its content. Credentials of an object store come from ``RUNCAST_ARTIFACT_KEY_ID`` and
``RUNCAST_ARTIFACT_SECRET_KEY`` (S3), else from where that store's own tools take them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, parse_qs, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, ObjectStore, S3Store

from broker.errors import ArtifactNotFound, ArtifactStoreUnavailable, InvalidRequest
from broker.settings import Settings

__all__ = ["CHUNK", "ArtifactStore"]

CHUNK = 1 << 20
"""Bytes of one read. Each is a request of its own, so a slow reader holds no connection to the store."""
_PARTS_AT_ONCE = 2
_WHY_MAX = 300
_SETTING = "RUNCAST_ARTIFACT_STORE"
_OPTIONS = ("endpoint", "region", "virtual_hosted_style_request")


class ArtifactStore:
    """One a process, made without IO. Every method raises ``ArtifactStoreUnavailable``; reads ``ArtifactNotFound``."""

    def __init__(self, settings: Settings) -> None:
        """Raises ``InvalidRequest`` for a URL that names no store."""
        self._open, self.shown = _place(settings)
        self._prefix = f"ns-{settings.namespace}"
        self._opened: ObjectStore | None = None

    # Keys.

    def of_run(self, run_id: str, sha256: str) -> str:
        """Where a file is that the run left."""
        return f"{self._prefix}/runs/run-{run_id}/{sha256}"

    def of_request(self, sha256: str) -> str:
        """Where content is that came with a request. Known by its digest alone: who knows that knows the content."""
        return f"{self._prefix}/inbound/{sha256}"

    # Content.

    async def put(self, key: str, content: bytes | Path) -> None:
        """Whole or not at all. What is there already is written again, and so counts as new for ``remove_older``."""
        with _told():
            await obstore.put_async(await self._store(), key, content, max_concurrency=_PARTS_AT_ONCE)

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from ``start`` up to, not including, ``end``, in pieces of up to ``CHUNK``."""
        while start < end:
            with _told():
                piece = await obstore.get_range_async(
                    await self._store(), key, start=start, end=min(start + CHUNK, end)
                )
            start += len(piece)
            yield bytes(piece)

    async def size(self, key: str) -> int:
        """How many bytes lie there."""
        with _told():
            return int((await obstore.head_async(await self._store(), key))["size"])

    async def remove_older(self, seconds: float) -> int:
        """Remove what was written longer ago; returns how many files that were. May be repeated, and run anywhere."""
        before, removed = time.time() - seconds, 0
        with _told():
            store = await self._store()
            async for page in obstore.list(store, self._prefix, chunk_size=500):
                old = [entry["path"] for entry in page if entry["last_modified"].timestamp() < before]
                if old:
                    await obstore.delete_async(store, old)
                removed += len(old)
        return removed

    async def probe(self) -> None:
        """Write, read and remove a file: what ``runcast doctor`` wants to know."""
        key = f"{self._prefix}/probe-{secrets.token_hex(8)}"
        await self.put(key, b"runcast")
        said = b"".join([piece async for piece in self.read(key, 0, 7)])
        with _told():
            await obstore.delete_async(await self._store(), key)
        if said != b"runcast":
            raise ArtifactStoreUnavailable("what was written to the artifact store comes back changed")

    async def _store(self) -> ObjectStore:
        if self._opened is None:
            self._opened = await asyncio.to_thread(self._open)
        return self._opened


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Whatever the store says, as an error of ours."""
    try:
        yield
    except FileNotFoundError as error:  # of every kind of store
        raise ArtifactNotFound(
            "the artifact store does not have this file: files are kept for RUNCAST_ARTIFACT_TTL, and all need"
            " the same store (RUNCAST_ARTIFACT_STORE, or RUNCAST_DATA_DIR on one machine)"
        ) from error
    except (BaseError, OSError, ValueError) as error:
        why = str(error).partition("\n")[0][:_WHY_MAX]
        raise ArtifactStoreUnavailable(f"the artifact store does not answer as it should: {why}") from error


def _place(settings: Settings) -> tuple[Callable[[], ObjectStore], str]:
    url = settings.artifact_store
    try:
        parts = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
    except ValueError as error:
        raise InvalidRequest(f"{_SETTING} is no URL: {error}", field=_SETTING) from error
    if unknown := [name for name in options if name not in _OPTIONS or parts.scheme != "s3"]:
        message = f"{_SETTING} has the option {unknown[0][:50]!r}: s3:// takes {', '.join(_OPTIONS)}, others none"
        raise InvalidRequest(message, field=_SETTING)
    match parts.scheme:
        case "file":
            directory = _directory(parts, settings)
            return lambda: _local(directory), str(directory)
        case "s3" | "gs" | "az" if parts.netloc and "@" not in parts.netloc:
            where = f" at {options['endpoint']}" if "endpoint" in options else ""
            shown = f"{parts.scheme}://{parts.netloc}{parts.path}{where}"
            return lambda: _object_store(parts, options, settings), shown
        case _:
            allowed = (
                "file:[DIR], s3://BUCKET, gs://BUCKET and az://CONTAINER are known, each with a /PREFIX if you like"
            )
            raise InvalidRequest(f"{_SETTING} names no store: {allowed}", field=_SETTING)


def _directory(parts: SplitResult, settings: Settings) -> Path:
    if parts.netloc not in ("", "localhost") or (parts.path and not parts.path.startswith("/")):
        raise InvalidRequest(f"{_SETTING}: a directory is given whole, file:/srv/artifacts", field=_SETTING)
    return Path(parts.path) if parts.path else settings.data_dir / "artifacts"


def _local(directory: Path) -> ObjectStore:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalStore(directory, automatic_cleanup=True)


def _object_store(parts: SplitResult, options: dict[str, str], settings: Settings) -> ObjectStore:
    common: dict[str, Any] = {
        "prefix": parts.path.strip("/") or None,
        "client_options": {"connect_timeout": "5s", "timeout": "30s"},
        "retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=20)},
    }
    if parts.scheme == "gs":
        return GCSStore(parts.netloc, **common)
    if parts.scheme == "az":
        return AzureStore(parts.netloc, **common)
    if options.get("endpoint", "").startswith("http://"):
        common["client_options"]["allow_http"] = True
    if settings.artifact_key_id is not None and settings.artifact_secret_key is not None:
        common["access_key_id"] = settings.artifact_key_id.get_secret_value()
        common["secret_access_key"] = settings.artifact_secret_key.get_secret_value()
    return S3Store(parts.netloc, **common, **cast(Any, options))
