"""Artifacts of a request: refused by their field before anything is stored, and staged so that they do not travel."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from broker import api
from broker.artifact_store import ArtifactStore
from broker.artifacts import InboundArtifact, StoredContent, allows_type, check_inbound, url_fault
from broker.errors import ArtifactStoreUnavailable, InvalidRequest, ItemTooBig
from broker.requests import RunInput, RunRequest, parse_request
from broker.settings import Settings
from broker.staging import INLINE_MAX, staged, unstaged

SHA = "ab" * 32


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def given(**fields: Any) -> InboundArtifact:
    return InboundArtifact(**{"name": "a.txt", **fields})


def request_of(*artifacts: InboundArtifact, message: str = "hello") -> RunRequest:
    return RunRequest(input=RunInput(message=message, artifacts=list(artifacts)))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(redis_url=f"memory:{uuid4().hex}", data_dir=tmp_path, inbound_bytes=100_000, inbound_count=3)


@pytest.mark.parametrize(
    ("artifacts", "field", "says"),
    [
        ([given()], "input.artifacts[0]", "one of them"),
        ([given(url="http://x/", content_base64="")], "input.artifacts[0]", "one of them"),
        ([given(content_base64="a")], "input.artifacts[0].content_base64", "base64"),
        ([given(content_base64="YQ==\n")], "input.artifacts[0].content_base64", "base64"),
        ([given(content_base64="-_-_")], "input.artifacts[0].content_base64", "base64"),
        ([given(content_base64="é")], "input.artifacts[0].content_base64", "base64"),
        ([given(name="../a", url="http://x/")], "input.artifacts[0].name", "separator"),
        ([given(url="http://x/"), given(name="A.TXT", url="http://x/")], "input.artifacts[1].name", "two artifacts"),
        ([given(url="http://x/"), given(name="ａ.txt", url="http://x/")], "input.artifacts[1].name", "two artifacts"),
        ([given(name=f"{n}.txt", url="http://x/") for n in range(4)], "input.artifacts", "3 are allowed"),
        ([given(url="file:///etc/passwd")], "input.artifacts[0].url", "http and https"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(
    settings: Settings, artifacts: list[InboundArtifact], field: str, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        check_inbound(artifacts, settings)
    assert caught.value.field == field


def test_sizes_are_of_the_content(settings: Settings) -> None:
    check_inbound([given(content_base64=b64(b"x" * 100_000))], settings)
    with pytest.raises(ItemTooBig, match="100001 bytes, 100000 are allowed"):
        check_inbound([given(content_base64=b64(b"x" * 100_001))], settings)
    with pytest.raises(ItemTooBig, match="100001"):
        check_inbound([given(stored=StoredContent(sha256=SHA, size=100_001))], settings)


def test_so_is_their_sum(settings: Settings) -> None:
    many = [given(name=f"{n}.txt", content_base64=b64(b"x" * 100)) for n in range(3)]
    check_inbound(many, settings.model_copy(update={"inbound_total_bytes": 300}))
    with pytest.raises(ItemTooBig, match="300 bytes, 299 are allowed"):
        check_inbound(many, settings.model_copy(update={"inbound_total_bytes": 299}))


def test_types_that_are_not_allowed_are_refused_by_name(settings: Settings) -> None:
    limited = settings.model_copy(update={"inbound_types": "image/*, text/plain"})
    check_inbound([given(url="http://x/"), given(name="b.png", url="http://x/")], limited)
    with pytest.raises(InvalidRequest, match=r"application/pdf.*image/"):
        check_inbound([given(name="b.pdf", url="http://x/")], limited)


@pytest.mark.parametrize(
    ("allowed", "kind", "whether"),
    [
        ("*", "a/b", True),
        ("*/*", "a/b", True),
        ("image/*", "image/png", True),
        ("image/*", "imagex/png", False),
        ("text/csv , image/*", "text/csv", True),
        ("text/csv", "text/csvx", False),
        ("", "a/b", False),
    ],
)
def test_patterns_of_types(allowed: str, kind: str, whether: bool) -> None:
    assert allows_type(allowed, kind) is whether


@pytest.mark.parametrize(
    "url",
    ["http://example.org", "https://example.org:8443/a%20b?c=d&e", "http://[2001:db8::1]/x", "HTTP://EXAMPLE.org/x"],
)
def test_urls_that_may_be_asked_for(url: str) -> None:
    assert url_fault(url) == ""


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.org/", "http and https"),
        ("file:///etc/passwd", "http and https"),
        ("gopher://x/", "http and https"),
        ("data:,x", "http and https"),
        ("//example.org/", "http and https"),
        ("http:///x", "no host"),
        ("http://", "no host"),
        ("http://user@example.org/", "user name"),
        ("http://user:secret@example.org/", "user name"),
        ("http://example.org:0/", "no host"),
        ("http://example.org:99999/", "read"),
        ("http://[::1/", "read"),
        ("http://[fe80::1%25eth0]/", "no host|read"),
        ("http://example.org\\@evil/", "backslash"),
        ("http://exa mple.org/", "blank"),
        ("http://example.org/\r\nHost: evil", "blank"),
        ("http://example.org/ü", "ASCII"),
        ("http://" + "a" * 5_000, "4096"),
        ("http://" + "a" * 254 + "/", "no host"),
    ],
)
def test_urls_that_may_not(url: str, says: str) -> None:
    fault = url_fault(url)
    assert fault
    assert any(part in fault for part in says.split("|")), fault
    assert "secret" not in fault


@pytest.mark.parametrize(
    "body", [b'"a"', b'{"name":"a","url":5}', b'{"name":"a","path":"/etc/passwd"}', b'{"url":"http://x"}']
)
def test_other_shapes_are_no_artifacts(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(b'{"input":{"message":"x","artifacts":[%b]}}' % body)
    assert "artifacts" in str(caught.value.field)


async def test_nothing_that_is_refused_reaches_the_store(settings: Settings) -> None:
    async with api.open(settings=settings) as broker:
        with pytest.raises(InvalidRequest):
            await broker.runs.create(request_of(given(name="..", url="http://x/")))
        assert await broker.runs.list() == ([], None)


async def test_larger_contents_are_staged(settings: Settings) -> None:
    files = ArtifactStore(settings)
    large, small = os.urandom(INLINE_MAX + 1), os.urandom(INLINE_MAX)
    asked = request_of(
        given(content_base64=b64(large)),
        given(name="b.txt", content_base64=b64(small)),
        given(name="c.txt", url="http://x/"),
    )
    kept = await staged(asked, files, settings)
    assert kept.input.artifacts is not None
    first, *others = kept.input.artifacts
    assert first == given(stored=StoredContent(sha256=hashlib.sha256(large).hexdigest(), size=len(large)))
    assert others == (asked.input.artifacts or [])[1:]
    assert await unstaged(first, files) == given(content_base64=b64(large))
    assert await unstaged(others[0], files) == others[0]
    # What an idempotency key is bound to does not depend on when it was staged.
    assert (await staged(asked, files, settings)).digest() == kept.digest()
    assert msgspec.convert(msgspec.to_builtins(kept), RunRequest) == kept


@pytest.mark.parametrize(
    "asked",
    [
        request_of(given(content_base64=b64(b"x" * 50_000)), message=" "),
        request_of(given(content_base64=b64(b"x" * 50_000)), given(name="..", url="http://x/")),
        request_of(given(content_base64=b64(b"x" * 50_000)), given(name="b", content_base64="?")),
        request_of(given(content_base64=b64(b"x" * 50_000)), given(name="b", stored=StoredContent(sha256=SHA, size=1))),
    ],
)
async def test_nothing_is_staged_of_a_request_that_is_refused(settings: Settings, asked: RunRequest) -> None:
    files = ArtifactStore(settings)
    with pytest.raises(InvalidRequest):
        await staged(asked, files, settings)
    assert await files.remove_older(-60) == 0


async def test_a_store_that_is_away_refuses_the_request(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("no directory")
    with pytest.raises(ArtifactStoreUnavailable):
        await staged(request_of(given(content_base64=b64(b"x" * 50_000))), ArtifactStore(settings), settings)


async def test_content_that_travels_with_the_record_is_bounded_by_its_field(settings: Settings) -> None:
    """Whoever makes runs without a gateway: the record takes what it always took."""
    narrow = settings.model_copy(update={"item_max_bytes": 4_096})
    async with api.open(settings=narrow) as broker:
        with pytest.raises(ItemTooBig) as caught:
            await broker.runs.create(request_of(given(content_base64=b64(b"x" * 9_000))))
    assert caught.value.field == "input.artifacts"
