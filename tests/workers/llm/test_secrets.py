"""Keys stay where they belong: in one header, to one host, over a connection that is what it says."""

from __future__ import annotations

import json
import logging
import ssl
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.servers import Certificates
from tests.workers.llm.endpoint import answer, serve, stream
from tests.workers.llm.plays import CHAT, ends, fence, hang_up
from tests.workers.llm.stage import KEY, Staging
from tests.workers.llm.wire import sse


async def test_a_key_that_the_server_quotes_is_taken_out(staging: Staging, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    quoting = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    async with serve(answer(401, quoting)) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
        shown = repr(stage.runner.settings) + str(stage.runner.settings.model_dump())
    assert endpoint.exchanges[0].headers["authorization"] == f"Bearer {KEY}"
    assert entries[-1].fields["message"] == "HTTP 401: Incorrect API key provided: [redacted]"
    assert KEY not in json.dumps([e.fields for e in entries]) + shown + caplog.text


async def test_a_key_that_an_event_quotes_is_taken_out(staging: Staging) -> None:
    quoting = sse({"error": {"message": f"key {KEY} was revoked", "code": "invalid_api_key"}})
    async with serve(ends(*CHAT[:3], quoting)) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run()
    assert fence(entries) == ("failed", "provider_auth", False)
    assert KEY not in json.dumps([e.fields for e in entries])
    assert "[redacted] was revoked" in entries[-1].fields["message"]


async def test_the_query_of_a_base_url_is_sent_and_not_shown(
    staging: Staging, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("httpx").setLevel(logging.NOTSET)  # as an earlier test did not leave it
    caplog.set_level("DEBUG")
    async with (
        serve(stream(*CHAT), hang_up) as endpoint,
        staging(f"{endpoint.url}/v1?code={KEY}", key=SecretStr(""), retries=0) as stage,
    ):
        entries = [*await stage.run(), *await stage.run()]
    assert endpoint.exchanges[0].path == f"/v1/chat/completions?code={KEY}"
    assert fence(entries)[:2] == ("failed", "provider_error")
    assert endpoint.url in entries[-1].fields["message"]
    assert KEY not in json.dumps([e.fields for e in entries]) + caplog.text


async def test_a_redirect_is_not_followed_with_a_key(staging: Staging) -> None:
    async with serve(stream(*CHAT)) as other:
        moved = answer(307, b"", location=f"{other.url}/v1/chat/completions")
        async with serve(moved) as endpoint, staging(endpoint.url) as stage:
            entries = await stage.run()
        assert other.exchanges == []
    assert fence(entries) == ("failed", "provider_error", False)
    assert "redirect" in entries[-1].fields["message"]


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    tmp_path: Path, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "certificates"
    made.mkdir()
    certificates = Certificates.create(made)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)
    async with serve(stream(*CHAT), context=context) as endpoint:
        async with staging(endpoint.url, retries=0) as stage:
            refused = await stage.run()
        assert endpoint.exchanges == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
        async with staging(endpoint.url, retries=0) as stage:
            trusted = await stage.run()
    assert fence(refused)[:2] == ("failed", "provider_error")
    assert "CERTIFICATE_VERIFY_FAILED" in refused[-1].fields["message"]
    assert fence(trusted)[0] == "final"
