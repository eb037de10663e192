"""A file of a run as a response: the whole or a range, for download, never as a page of this origin."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator
from typing import TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from broker.artifact_store import CHUNK, ArtifactStore
from broker.errors import ArtifactNotFound
from broker.records import RunRecord
from gateway import metrics
from gateway.answers import ArtifactEntry, ArtifactPage, SkippedFile
from gateway.ranges import wanted

__all__ = ["disposition", "find", "listing", "serve"]

T = TypeVar("T")
_SANDBOX = "default-src 'none'; sandbox"


def listing(record: RunRecord) -> ArtifactPage:
    """What the run left, as its outcome tells it. Empty while it goes on."""
    item = (record.outcome or {}).get("item") or {}
    skipped = item.get("artifacts_skipped")
    skipped = skipped if isinstance(skipped, dict) else {}
    count = skipped.get("count")
    return ArtifactPage(
        run_id=record.run_id,
        status=record.status,
        artifacts=_valid(item.get("artifacts"), ArtifactEntry),
        skipped=_valid(skipped.get("files"), SkippedFile),
        skipped_count=count if isinstance(count, int) else 0,
    )


def _valid(listed: object, kind: type[T]) -> list[T]:
    """What fits the type: a worker in another language, or an import, may have written the outcome."""
    found = []
    for each in listed if isinstance(listed, list) else []:
        try:
            found.append(msgspec.convert(each, kind))
        except msgspec.ValidationError:
            continue
    return found


def find(record: RunRecord, name: str) -> ArtifactEntry:
    """Raises ``ArtifactNotFound``, which says why."""
    page = listing(record)
    for entry in page.artifacts:
        if entry.name == name:
            return entry
    if not record.is_ended:
        raise ArtifactNotFound(f"run {record.run_id!r} has not ended: its files can be had then")
    names = ", ".join(repr(entry.name) for entry in page.artifacts[:10]) or "none"
    raise ArtifactNotFound(f"run {record.run_id!r} left no file {name[:200]!r}. It left: {names}")


async def serve(request: Request, store: ArtifactStore, run_id: str, entry: ArtifactEntry) -> Response:
    """Raises ``ArtifactNotFound`` and ``ArtifactStoreUnavailable`` ahead of the first byte. Where the store goes away
    behind it, the connection breaks, so that half a file is not taken for a whole one."""
    etag = f'"{entry.sha256}"'
    asked = wanted(request.headers, entry.size, etag)
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": disposition(entry.name),
        # What an agent made is shown by nothing here as what it says that it is.
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": _SANDBOX,
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    if asked.status == 304:
        return Response(status_code=304, headers=headers)
    if asked.status == 416:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{entry.size}"})
    headers["Content-Length"] = str(asked.end - asked.start)
    if asked.status == 206:
        headers["Content-Range"] = f"bytes {asked.start}-{asked.end - 1}/{entry.size}"
    key = store.of_run(run_id, entry.sha256)
    first = await _first(store, key, asked.start, min(asked.start + CHUNK, asked.end))
    content = _content(store, key, first, asked.start + len(first), asked.end)
    return StreamingResponse(content, asked.status, headers=headers, media_type=entry.type)


async def _first(store: ArtifactStore, key: str, start: int, end: int) -> bytes:
    """Read before the status is sent: it says whether there is a file."""
    if start == end:
        await store.size(key)
        return b""
    return b"".join([piece async for piece in store.read(key, start, end)])


async def _content(store: ArtifactStore, key: str, first: bytes, start: int, end: int) -> AsyncIterator[bytes]:
    metrics.ARTIFACT_BYTES.inc(len(first))
    yield first
    async for piece in store.read(key, start, end):
        metrics.ARTIFACT_BYTES.inc(len(piece))
        yield piece


def disposition(path: str) -> str:
    """``Content-Disposition`` for a download under the last part of ``path`` (RFC 6266): what old clients can read,
    and the name itself."""
    name = path.rpartition("/")[2]
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = "".join(c for c in plain if c.isprintable() and c not in '"\\%;') or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
