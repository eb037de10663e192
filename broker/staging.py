"""Content that comes with a request → the artifact store, so that it does not travel with the run's record."""

from __future__ import annotations

import base64
import hashlib

import msgspec

from broker.artifact_store import ArtifactStore
from broker.artifacts import InboundArtifact, StoredContent, check_inbound, content_of
from broker.errors import InvalidRequest
from broker.requests import RunRequest
from broker.settings import Settings

__all__ = ["INLINE_MAX", "staged", "unstaged"]

INLINE_MAX = 16 * 1024
"""Bytes of content that stay in the record: everybody who looks at the run reads that."""


async def staged(request: RunRequest, store: ArtifactStore, settings: Settings) -> RunRequest:
    """``request`` as it came from a caller, with larger contents stored and named by their digest instead. Equal
    requests give equal results, so an idempotency key means what it meant.

    Everything that can be checked is checked first. Raises what ``RunRequest.check`` and ``check_inbound`` raise, and
    ``ArtifactStoreUnavailable``.
    """
    artifacts = request.input.artifacts or []
    if not artifacts:
        return request
    bare = msgspec.structs.replace(request.input, artifacts=None)
    msgspec.structs.replace(request, input=bare).check(settings.item_max_bytes)
    for place, artifact in enumerate(artifacts):
        if artifact.stored is not None:
            message = "“stored” is no field of a request: give url or content_base64"
            raise InvalidRequest(message, field=f"input.artifacts[{place}].stored")
    check_inbound(artifacts, settings)
    kept = [await _staged(artifact, store) for artifact in artifacts]
    return msgspec.structs.replace(request, input=msgspec.structs.replace(request.input, artifacts=kept))


async def _staged(artifact: InboundArtifact, store: ArtifactStore) -> InboundArtifact:
    content = b"" if artifact.content_base64 is None else content_of(artifact)
    if len(content) <= INLINE_MAX:
        return artifact
    digest = hashlib.sha256(content).hexdigest()
    await store.put(store.of_request(digest), content)
    return InboundArtifact(name=artifact.name, stored=StoredContent(sha256=digest, size=len(content)))


async def unstaged(artifact: InboundArtifact, store: ArtifactStore) -> InboundArtifact:
    """The other way round, for a runner that passes contents on. Raises ``ArtifactNotFound``,
    ``ArtifactStoreUnavailable``."""
    stored = artifact.stored
    if stored is None:
        return artifact
    pieces = [piece async for piece in store.read(store.of_request(stored.sha256), 0, stored.size)]
    return InboundArtifact(name=artifact.name, content_base64=base64.b64encode(b"".join(pieces)).decode())
