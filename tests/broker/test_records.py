"""What workers in any language stored: a record must not be unreadable for it."""

from __future__ import annotations

import pytest

from broker.records import parse_ask, parse_record

FIELDS = dict.fromkeys((b"attempt", b"epoch", b"rewound_to", b"first", b"last", b"bytes", b"created"), b"1")
FIELDS |= dict.fromkeys((b"owner", b"beat", b"session", b"principal", b"on_worker_lost", b"queue"), b"")
FIELDS |= {b"queue_entry": b"", b"status": b"running", b"request": b"{}"}
DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000


@pytest.mark.parametrize("value", [DEEP, b'{"a":"\xff"}', b'{"a":1e999}'])
def test_a_part_of_a_record_that_cannot_be_read_is_left_out(value: bytes) -> None:
    record = parse_record("run_1", FIELDS | {b"usage": value, b"outcome": value})
    assert record.status == "running"


def test_an_ask_that_cannot_be_read_is_none() -> None:
    assert parse_ask("q", DEEP) is None
