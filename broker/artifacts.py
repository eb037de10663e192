"""Files that a run is given, as a request names them, and their checks. Pure.

What can be told from the request alone is checked before anything is stored: count, names, sizes, the form of URLs.
What a URL leads to is the worker's business (``workers/fetching.py``).
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from broker.artifact_names import fault_of, media_type, shown
from broker.errors import InvalidRequest, ItemTooBig
from broker.settings import Settings

__all__ = ["InboundArtifact", "StoredContent", "allows_type", "check_inbound", "check_url", "content_of", "url_fault"]

URL_MAX = 4_096
_URL = re.compile(r"[\x21-\x7e]+\Z")
_HOST_MAX = 253


class StoredContent(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Content that a gateway has put into the artifact store, by its SHA-256; ``size`` in bytes."""

    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    size: Annotated[int, msgspec.Meta(ge=0)]


class InboundArtifact(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file that the run finds in its workspace under ``name``: what ``url`` leads to, or ``content_base64``.

    ``stored`` takes the place of ``content_base64`` in what is kept; no caller gives it.
    """

    name: str
    url: str | None = None
    content_base64: str | None = None
    stored: StoredContent | None = None


def check_inbound(artifacts: Sequence[InboundArtifact], settings: Settings) -> None:
    """Raises ``InvalidRequest`` or ``ItemTooBig``, naming the field and what is allowed."""
    if len(artifacts) > settings.inbound_count:
        message = f"{len(artifacts)} artifacts are too many: {settings.inbound_count} are allowed"
        raise InvalidRequest(message, field="input.artifacts")
    seen: set[str] = set()
    total = 0
    for place, artifact in enumerate(artifacts):
        field = f"input.artifacts[{place}]"
        _check_name(artifact.name, seen, field, settings)
        total += _checked_size(artifact, field, settings)
    if total > settings.inbound_total_bytes:
        message = f"the artifacts have {total} bytes, {settings.inbound_total_bytes} are allowed"
        raise ItemTooBig(message, field="input.artifacts")


def _check_name(name: str, seen: set[str], field: str, settings: Settings) -> None:
    if fault := fault_of(name):
        raise InvalidRequest(f"the name {shown(name)!r} {fault}", field=f"{field}.name")
    # On some file systems both would be one file.
    folded = unicodedata.normalize("NFKC", name).casefold()
    if folded in seen:
        raise InvalidRequest(f"two artifacts have the name {shown(name)!r}", field=f"{field}.name")
    seen.add(folded)
    if not allows_type(settings.inbound_types, kind := media_type(name)):
        message = f"{shown(name)!r} is of type {kind}: allowed is {settings.inbound_types}"
        raise InvalidRequest(message, field=f"{field}.name")


def _checked_size(artifact: InboundArtifact, field: str, settings: Settings) -> int:
    given = [value for value in (artifact.url, artifact.content_base64, artifact.stored) if value is not None]
    if len(given) != 1:
        raise InvalidRequest("give the url or the content_base64 of an artifact: one of them", field=field)
    if artifact.url is not None:
        check_url(artifact.url, f"{field}.url")
        return 0
    size = artifact.stored.size if artifact.stored is not None else len(content_of(artifact, field))
    if size > settings.inbound_bytes:
        message = f"{shown(artifact.name)!r} has {size} bytes, {settings.inbound_bytes} are allowed"
        raise ItemTooBig(message, field=f"{field}.content_base64")
    return size


def content_of(artifact: InboundArtifact, field: str = "input.artifacts") -> bytes:
    """The bytes of ``content_base64``. Raises ``InvalidRequest`` where that is no base64 (RFC 4648, 4, padded)."""
    try:
        return base64.b64decode(artifact.content_base64 or "", validate=True)
    except (binascii.Error, ValueError) as error:
        message = f"this is no base64 of the standard alphabet, padded and without line ends: {error}"
        raise InvalidRequest(message, field=f"{field}.content_base64") from error


def check_url(url: str, field: str) -> None:
    """Raises ``InvalidRequest`` unless ``url`` is one that a worker would ask for."""
    if fault := url_fault(url):
        raise InvalidRequest(f"the URL {fault}", field=field)


def url_fault(url: str) -> str:
    """What is wrong with a URL, to follow “the URL”; empty where it may be asked for."""
    if len(url) > URL_MAX:
        return f"has {len(url)} characters, {URL_MAX} are allowed"
    if not _URL.match(url) or "\\" in url:
        return "has a blank, a backslash or a character that is not printable ASCII: percent-encode it"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"cannot be read: {error}"
    if parts.scheme not in ("http", "https"):
        return f"is of scheme {parts.scheme[:20]!r}: http and https are allowed"
    if "@" in parts.netloc:
        return "has a user name or password in it"
    if not parts.hostname or len(parts.hostname) > _HOST_MAX or "%" in parts.hostname or port == 0:
        return "names no host"
    return ""


def allows_type(allowed: str, kind: str) -> bool:
    """Whether ``allowed``, media types separated by commas (``image/*,text/csv``; ``*``: any), has ``kind`` in it."""
    for pattern in (part.strip().lower() for part in allowed.split(",")):
        if pattern in ("*", "*/*", kind) or (pattern.endswith("/*") and kind.startswith(pattern[:-1])):
            return True
    return False
