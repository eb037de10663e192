"""Every error is problem+json with the code and status of the one table."""

from __future__ import annotations

import msgspec
import pytest

from broker import errors
from broker.errors import RuncastError
from broker.requests import RunRequest
from gateway import problems
from gateway.problems import PROBLEMS, decode_body, problem_of, render

DECODER = msgspec.json.Decoder(RunRequest)


def all_errors() -> list[type[RuncastError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [*found, problems.Forbidden, problems.BodyTooLarge, problems.UnsupportedMediaType]


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_of_the_broker_is_in_the_table(kind: type[RuncastError]) -> None:
    assert kind.code in PROBLEMS


@pytest.mark.parametrize("kind", [errors.StoreUnavailable, errors.OutageTooLong])
def test_whatever_may_succeed_later_is_503_and_says_when(kind: type[RuncastError]) -> None:
    response = render(problem_of(kind("away")))
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")


def test_a_problem_has_its_fields() -> None:
    body = msgspec.json.decode(render(problem_of(errors.InvalidId("no", field="run_id"))).body)
    assert body == {
        "type": "urn:runcast:problem:invalid_id",
        "title": "Not a valid id",
        "status": 400,
        "code": "invalid_id",
        "detail": "no",
        "field": "run_id",
    }


def test_details_with_lone_surrogates_are_rendered() -> None:
    assert b"a?" in render(problem_of(errors.InvalidId("a\ud800", field="\ud800"))).body


@pytest.mark.parametrize(
    ("body", "code", "field", "says"),
    [
        (b"", "bad_request", None, "JSON"),
        (b"{", "bad_request", None, "JSON"),
        (b'{"input":{"message":"\xff"}}', "bad_request", None, "JSON"),
        (b'{"input":{"message":"x","attachments":' + b"[" * 100_000, "bad_request", None, "nested"),
        (b'{"input":{"message":"x","attachments":' + b"[" * 63 + b"]" * 63 + b"}}", "bad_request", None, "64 levels"),
        (b"[]", "invalid_request", None, "object"),
        (b"{}", "invalid_request", "input", "required"),
        (b'{"input":{}}', "invalid_request", "input.message", "required"),
        (b'{"input":{"message":5}}', "invalid_request", "input.message", "str"),
        (b'{"input":{"message":"x","prompt":"y"}}', "invalid_request", "input.prompt", "toolsets"),
        (b'{"input":{"message":"x"},"colour":1}', "invalid_request", "colour", "on_worker_lost"),
        (b'{"input":{"message":"x","approvals":"maybe"}}', "invalid_request", "input.approvals", "yolo, ask"),
        (b'{"input":{"message":"x"},"on_worker_lost":"no"}', "invalid_request", "on_worker_lost", "fail, retry"),
        (b'{"input":{"message":"x"},"runner":"a b"}', "invalid_request", "runner", "regex"),
        (b'{"input":{"message":"x"},"deadline_s":0}', "invalid_request", "deadline_s", "> 0"),
    ],
)
def test_bodies_are_refused_by_the_name_of_the_field(body: bytes, code: str, field: str | None, says: str) -> None:
    with pytest.raises(errors.BadRequest, match=says) as caught:
        decode_body(DECODER, body)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_a_body_may_be_as_deep_as_is_said() -> None:
    """Brackets within strings are none, and many side by side are not deep."""
    quoted = b'"' + b'[{\\"' * 100 + b'"'
    deepest = b"[" * 61 + quoted + b"]" * 61
    flat = b",".join([b"[]"] * 100)
    body = b'{"input":{"message":%s,"attachments":[%s,%s]}}' % (quoted, deepest, flat)
    assert decode_body(DECODER, body).input.attachments[1:] == [[]] * 100
    with pytest.raises(errors.BadRequest, match="64 levels"):
        decode_body(DECODER, body.replace(deepest, b"[%s]" % deepest))
