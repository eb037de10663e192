"""What a worker fetches for a run: within limits, and from nowhere that it should not be sent to."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.settings import Settings
from tests.servers import Certificates, eventually, free_port
from tests.workers.bad_web import Answer, answering, serving
from workers.fetching import Fetcher, Resolve
from workers.runner import RunnerFailed

LOCAL = "127.0.0.0/8"


def fetcher(resolve: Resolve | None = None, **settings: Any) -> Fetcher:
    return Fetcher(Settings(**{"inbound_networks": LOCAL, **settings}), resolve)


def at(addresses: dict[str, Sequence[str]], asked: list[str] | None = None) -> Resolve:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if asked is not None:
            asked.append(host)
        return addresses[host]

    return resolve


async def body_of(fetching: Fetcher, url: str, limit: int = 1_000_000) -> bytes:
    got = bytearray()
    async with asyncio.timeout(20):
        fetched = await fetching.fetch(url, got.extend, limit)
    assert fetched.size == len(got)
    return bytes(got)


async def code_of(fetching: Fetcher, url: str, limit: int = 1_000_000) -> RunnerFailed:
    with pytest.raises(RunnerFailed) as caught:
        await body_of(fetching, url, limit)
    return caught.value


async def test_a_body_comes_as_it_is_and_nothing_of_ours_goes_with_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_port()}")
    async with serving({"/a": answering(b"hello", Content_Type="Text/CSV; charset=x", Set_Cookie="a=b")}) as web:
        for _ in range(2):
            got = bytearray()
            fetched = await fetcher().fetch(web.url("/a?b=c"), got.extend, 5)
            assert (bytes(got), fetched.type) == (b"hello", "text/csv")
    heads = [head.decode().lower() for head in web.heads]
    assert heads[0] == heads[1]
    assert "accept-encoding: identity" in heads[0]
    assert f"host: 127.0.0.1:{web.port}" in heads[0]
    assert "cookie" not in heads[0]
    assert "authorization" not in heads[0]


async def test_a_chunked_body_and_one_without_length_come_whole() -> None:
    async def until_closed(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nold")

    chunked = answering(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", Content_Length="", Transfer_Encoding="chunked")
    async with serving({"/chunked": chunked, "/old": until_closed}) as web:
        assert await body_of(fetcher(), web.url("/chunked")) == b"abcde"
        assert await body_of(fetcher(), web.url("/old")) == b"old"


# Where to.


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "0"],
)
async def test_this_machine_is_refused_however_it_is_written(host: str) -> None:
    async with serving({"/": answering(b"secret")}) as web:
        failed = await code_of(fetcher(inbound_networks=""), web.url("/", host=host))
    # Some ways to write it are understood by one system and not by another.
    assert failed.code in ("artifact_address_refused", "artifact_fetch_failed"), failed.message
    assert web.heads == []


async def test_what_is_refused_is_told_with_the_way_to_allow_it() -> None:
    failed = await code_of(fetcher(inbound_networks=""), f"http://127.0.0.1:{free_port()}/")
    assert failed.code == "artifact_address_refused"
    assert not failed.retryable
    assert "127.0.0.1" in failed.message
    assert "RUNCAST_INBOUND_NETWORKS" in failed.message


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """DNS rebinding: a name that is public when it is checked and private when it is used. It is asked once."""
    asked: list[str] = []
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return next(answers)

    async with serving({"/": answering(b"ok")}) as web:
        assert await body_of(fetcher(resolve), web.url("/", host="rebinding.example")) == b"ok"
    assert asked == ["rebinding.example"]
    assert f"host: rebinding.example:{web.port}".encode() in web.heads[0].lower()


async def test_of_several_addresses_only_those_that_are_allowed_are_tried() -> None:
    resolve = at({"mixed.example": ["169.254.169.254", "10.0.0.1", "127.0.0.1"], "private.example": ["10.0.0.1"]})
    async with serving({"/": answering(b"ok")}) as web:
        assert await body_of(fetcher(resolve), web.url("/", host="mixed.example")) == b"ok"
        failed = await code_of(fetcher(resolve), web.url("/", host="private.example"))
    assert failed.code == "artifact_address_refused"


async def test_of_several_the_next_is_tried_where_one_does_not_answer() -> None:
    """127.0.0.2 is this machine too, and nobody listens there."""
    async with serving({"/": answering(b"ok")}) as web:
        resolve = at({"two.example": ["127.0.0.2", "127.0.0.1"]})
        assert await body_of(fetcher(resolve), web.url("/", host="two.example")) == b"ok"


async def test_a_name_that_nobody_knows_is_said() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    failed = await code_of(fetcher(resolve), "http://nowhere.example/")
    assert (failed.code, failed.retryable) == ("artifact_fetch_failed", True)
    assert "nowhere.example" in failed.message


async def test_nobody_listens() -> None:
    failed = await code_of(fetcher(), f"http://127.0.0.1:{free_port()}/")
    assert (failed.code, failed.retryable) == ("artifact_fetch_failed", True)


# Redirects.


async def test_redirects_are_followed_and_resolved_against_where_they_stand() -> None:
    pages = {
        "/a/b": answering(status="302 Found", Location="../c?x#frag"),
        "/c": answering(status="307 Temporary Redirect", Location="/d"),
        "/d": answering(b"there"),
    }
    async with serving(pages) as web:
        assert await body_of(fetcher(), web.url("/a/b")) == b"there"


@pytest.mark.parametrize("host", ["private.example", "127.0.0.2", "[::1]", "localhost"])
async def test_a_redirect_to_a_private_address_is_refused(host: str) -> None:
    resolve = at({"public.example": ["127.0.0.1"], "private.example": ["10.0.0.1"], "127.0.0.2": ["127.0.0.2"]})
    pages: dict[str, Answer] = {}
    async with serving(pages) as web:
        pages["/"] = answering(status="302 Found", Location=web.url("/secret", host=host))
        pages["/secret"] = answering(b"secret")

        async def resolved(name: str, port: int) -> Sequence[str]:
            return await resolve(name, port) if name.endswith("example") else [name.strip("[]")]

        failed = await code_of(fetcher(resolved, inbound_networks="127.0.0.1"), web.url("/", host="public.example"))
    assert failed.code == "artifact_address_refused"
    assert len(web.heads) == 1


async def test_a_redirect_to_the_same_name_is_checked_anew() -> None:
    """The name leads elsewhere by then."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(answers)

    async with serving({"/": answering(status="302 Found", Location="/latest/meta-data")}) as web:
        failed = await code_of(fetcher(resolve), web.url("/", host="rebinding.example"))
    assert failed.code == "artifact_address_refused"


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://x/", "//user:pw@x/", "http://[::1", "http://x/\x01", "data:,x"],
)
async def test_a_redirect_to_what_is_no_such_url_is_refused(location: str) -> None:
    async with serving({"/": answering(status="301 Moved", Location=location)}) as web:
        failed = await code_of(fetcher(), web.url("/"))
    assert failed.code in ("artifact_redirect_refused", "artifact_fetch_failed"), failed.message
    assert len(web.heads) == 1


@pytest.mark.parametrize("most", [0, 3])
async def test_redirects_end(most: int) -> None:
    async with serving({"/": answering(status="302 Found", Location="/")}) as web:
        failed = await code_of(fetcher(inbound_redirects=most), web.url("/"))
    assert failed.code == "artifact_redirect_refused"
    assert len(web.heads) == most + 1


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's context whose authority this test trusts."""
    certificates = Certificates.create(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context


async def test_tls_is_of_the_name_and_not_left(tls: ssl.SSLContext) -> None:
    resolve = at({"localhost": ["127.0.0.1"], "other.example": ["127.0.0.1"]})
    pages = {"/": answering(b"ok"), "/down": answering(status="302 Found", Location="http://localhost/")}
    async with serving(pages, tls=tls) as web:
        assert await body_of(fetcher(resolve), web.url("/", "localhost", "https")) == b"ok"
        wrong = await code_of(fetcher(resolve), web.url("/", "other.example", "https"))
        down = await code_of(fetcher(resolve), web.url("/down", "localhost", "HTTPS"))
    assert wrong.code == "artifact_fetch_failed"
    assert down.code == "artifact_redirect_refused"
    assert "leaves TLS" in down.message


# Bodies.


async def endless(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    for _n in range(100_000):  # 6 GiB: whoever reads on would take the test's time
        writer.write(b"x" * 65_536)
        await writer.drain()


async def endless_chunks(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _n in range(100_000):
        writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        await writer.drain()


async def endless_headers(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for n in range(1_000_000):
        writer.write(b"X-%d: %b\r\n" % (n, b"x" * 1_000))
        await writer.drain()


async def endless_redirect_body(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 302 Found\r\nLocation: /ok\r\n\r\n")
    for _n in range(100_000):
        writer.write(b"x" * 65_536)
        await writer.drain()


@pytest.mark.parametrize("body", [endless, endless_chunks])
async def test_an_endless_body_is_given_up_at_the_limit(body: Answer) -> None:
    async with serving({"/": body}) as web:
        written = bytearray()
        with pytest.raises(RunnerFailed) as caught:
            await fetcher().fetch(web.url("/"), written.extend, 100_000)
        await eventually(web.left.is_set)
    assert caught.value.code == "artifact_too_big"
    assert len(written) <= 100_000


async def test_endless_headers_are_given_up() -> None:
    async with serving({"/": endless_headers}) as web:
        failed = await code_of(fetcher(), web.url("/"))
        await eventually(web.left.is_set)
    assert failed.code == "artifact_fetch_failed"


async def test_the_body_of_a_redirect_is_not_read() -> None:
    async with serving({"/": endless_redirect_body, "/ok": answering(b"ok")}) as web:
        assert await body_of(fetcher(), web.url("/")) == b"ok"


async def test_a_length_beyond_the_limit_is_enough() -> None:
    async with serving({"/": answering(b"", Content_Length="1001")}) as web:
        failed = await code_of(fetcher(), web.url("/"), limit=1_000)
    assert failed.code == "artifact_too_big"
    assert "1000" in failed.message


async def test_exactly_the_limit_is_taken() -> None:
    async with serving({"/": answering(b"x" * 1_000)}) as web:
        assert len(await body_of(fetcher(), web.url("/"), limit=1_000)) == 1_000
        assert (await code_of(fetcher(), web.url("/"), limit=999)).code == "artifact_too_big"


@pytest.mark.parametrize(
    "body",
    [answering(b"half", Content_Length="8"), answering(b"8\r\nhalf", Content_Length="", Transfer_Encoding="chunked")],
)
async def test_a_body_that_breaks_off_is_none(body: Answer) -> None:
    async with serving({"/": body}) as web:
        failed = await code_of(fetcher(), web.url("/"))
    assert (failed.code, failed.retryable) == ("artifact_fetch_failed", True)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", bytes),
        ("zstd", bytes),
        ("gzip, gzip", gzip.compress),
    ],
)
async def test_a_decompression_bomb_is_not_unpacked(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(b"\0" * 10_000_000)
    async with serving({"/": answering(bomb, Content_Encoding=encoding)}) as web:
        failed = await code_of(fetcher(), web.url("/"), limit=20_000_000)
    assert failed.code == "artifact_encoding_refused"


async def test_an_archive_is_a_file_like_others() -> None:
    packed = gzip.compress(b"\0" * 10_000_000)
    async with serving({"/": answering(packed, Content_Type="application/gzip")}) as web:
        assert await body_of(fetcher(), web.url("/"), limit=len(packed)) == packed


@pytest.mark.parametrize(
    "status", ["404 Not Found", "500 Oops", "206 Partial Content", "204 No Content", "304 Not Modified"]
)
async def test_only_200_is_an_answer(status: str) -> None:
    async with serving({"/": answering(b"", status=status)}) as web:
        failed = await code_of(fetcher(), web.url("/"))
    assert failed.code == "artifact_fetch_failed"
    assert status[:3] in failed.message
    assert failed.retryable is status.startswith("5")


async def test_a_type_that_is_not_allowed_is_refused() -> None:
    pages = {
        "/page": answering(b"<html>", Content_Type="text/html"),
        "/any": answering(b"x", Content_Type="application/octet-stream"),
    }
    async with serving(pages) as web:
        failed = await code_of(fetcher(inbound_types="image/*"), web.url("/page"))
        assert await body_of(fetcher(inbound_types="image/*"), web.url("/any")) == b"x"
    assert failed.code == "artifact_type_refused"
    assert "text/html" in failed.message


async def test_what_is_no_http_is_said() -> None:
    async def greeting(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")

    async with serving({"/": greeting}) as web:
        failed = await code_of(fetcher(), web.url("/"))
    assert failed.code == "artifact_fetch_failed"


async def test_a_server_that_says_nothing_holds_nobody_for_longer_than_allowed() -> None:
    """The caller's limit of time ends it; so does a stop of the run."""

    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with serving({"/": silent}) as web:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await fetcher().fetch(web.url("/"), bytearray().extend, 10)
