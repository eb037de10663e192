"""The audit: what it says and never says, and its file, written once whoever dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.audit_entries import parse_audit
from broker.audit_file import AuditFile
from broker.errors import StoreUnavailable
from broker.redis import Store
from broker.settings import Settings
from tests.broker.books import Books, fence, lines_of
from tests.gateways import until

KEY = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture
def books(store: Store) -> Books:
    return Books(store)


async def run_that_says(books: Books) -> dict[str, Any]:
    """Its entry; the prompt, the answer and the error have words and a key."""
    message = {"role": "assistant", "content": [{"type": "text", "text": f"said so {KEY}"}]}
    run = await books.begun(message=f"asked that {KEY}", principal="ann")
    end = fence("failed", code="provider_error", message=f"went wrong {KEY}", partial=message, tokens=5)
    await books.ledger.settle(await books.over(run, end))
    (entry,) = await books.audited()
    return entry.fields


async def test_who_what_when_how_and_for_how_much(books: Books) -> None:
    run = await books.begun(principal="ann", session_id=f"s-{uuid4().hex}", model="m-1")
    ended = await books.over(run, fence(cost="0.25", tokens=7))
    await books.ledger.settle(ended)
    (entry,) = await books.audited()
    told = entry.fields
    assert told["ts"] == pytest.approx(ended.ended, abs=60)
    assert (told["id"], told["kind"], told["run_id"], told["principal"]) == (entry.id, "run", run.run_id, "ann")
    assert (told["session_id"], told["runner"], told["model"]) == (run.session_id, "hermes", "m-1")
    assert (told["status"], told["code"], told["attempts"]) == ("completed", None, 1)
    assert (told["created"], told["started"], told["ended"]) == (run.created, run.started, ended.ended)
    assert 0 <= told["duration_s"] < 60
    assert (told["usage"], told["cost"], told["cost_known"]) == ({"input_tokens": 7, "output_tokens": 1}, "0.25", True)
    assert json.loads(entry.line()) == told


async def test_no_text_that_anybody_wrote_unless_it_is_asked_for(books: Books) -> None:
    line = json.dumps(await run_that_says(books))
    assert not any(word in line for word in ("asked that", "said so", "went wrong"))
    assert "provider_error" in line


async def test_texts_are_kept_without_their_secrets(store: Store) -> None:
    told = await run_that_says(Books(store, audit_text=True))
    assert (told["message"], told["reply"], told["error"]) == tuple(
        f"{said} [redacted]" for said in ("asked that", "said so", "went wrong")
    )


async def test_what_is_nested_beyond_all_reason_is_left_out_and_holds_nobody_up(books: Books) -> None:
    """As a worker of somebody else may write it, that the scripts let through."""
    deep: Any = "deep"
    for _ in range(400):
        deep = {"in": deep}
    ends = fence(usage={"input_tokens": 7, "other": deep}), fence(tokens=8)
    ended = [(await books.over(await books.begun(), end)).run_id for end in ends]
    assert await books.ledger.settle_ended(ended) == 2
    told = [entry.fields["usage"]["input_tokens"] for entry in await books.audited()]
    assert sorted(told) == [7, 8]


async def test_secrets_of_the_settings_are_known(store: Store) -> None:
    books = Books(store, secret=Settings(secret="open sesame").secret, audit_text=True)  # type: ignore[arg-type]
    await books.ledger.audit.note("artifact", name="open sesame.txt", inner=[{"x": "open sesame"}])
    (entry,) = await books.audited()
    assert (entry.fields["name"], entry.fields["inner"]) == ("[redacted].txt", [{"x": "[redacted]"}])


async def test_a_note_is_never_the_end_of_a_request(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    await books.ledger.audit.note("cancel", run_id="r", odd="\ud800", odder=object())
    monkeypatch.setattr(books.store, "call", away)
    await books.ledger.audit.note("cancel", run_id="r")
    monkeypatch.undo()
    assert [e.fields["run_id"] for e in await books.audited()] == ["r"]


async def test_cancels_and_answers_are_audited_with_who_gave_them(books: Books) -> None:
    run = await books.begun()
    asked: dict[str, Any] = {"kind": "question", "payload": {"question": "?"}, "free": True, "timeout": 60.0}
    await books.runs.asks.ask(run.run_id, "me", run.epoch, "q1", **asked)
    await books.runs.answer(run.run_id, "q1", "my mother's name", principal="ann")
    await books.runs.cancel(run.run_id, principal="bob")
    told = [e.fields for e in await books.audited()]
    assert [(f["kind"], f["principal"], f["run_id"]) for f in told] == [
        ("input", "ann", run.run_id),
        ("cancel", "bob", run.run_id),
    ]
    assert "mother" not in json.dumps(told)


async def test_the_stream_is_capped_by_number_and_age(store: Store) -> None:
    books = Books(store, audit_max_entries=150, audit_ttl=60.0)
    key = books.ledger.audit.key
    for n in range(1, 301):  # of 1970
        await store.call("XADD", key, f"{n}-1", "kind", "cancel", "run_id", "", "d", "{}")
    await books.ledger.audit.note("cancel", run_id="new")
    assert await store.call("XLEN", key) < 300
    await books.ledger.settle(await books.over(await books.begun(), fence(cost="0")))
    # A node of the stream, 100 entries, is dropped as a whole.
    assert await store.call("XLEN", key) <= 100
    assert [e.fields["kind"] for e in await books.audited()][-2:] == ["cancel", "run"]


async def test_reading_goes_on_behind_an_entry(books: Books) -> None:
    for n in range(3):
        await books.ledger.audit.note("cancel", run_id=f"r{n}")
    first = (await books.audited())[0].id
    assert [e.fields["run_id"] async for e in books.ledger.audit.read(first)] == ["r1", "r2"]


def test_an_entry_that_somebody_else_wrote_is_told_as_far_as_it_goes() -> None:
    entry = parse_audit(b"5000-1", [b"kind", b"x\xff", b"d", b"no json", b"booked", b"-1"])
    assert entry.fields == {"id": "5000-1", "ts": 5.0, "kind": "x\ufffd", "run_id": None, "unreadable": True}


# The file.


@asynccontextmanager
async def writing(*books: Books) -> AsyncIterator[None]:
    """Each of them writes the file, or waits for its turn."""
    async with AsyncExitStack() as stack:
        for one in books:
            task = asyncio.create_task(AuditFile(one.store, one.ledger.audit).run_forever())
            stack.push_async_callback(_end, task)
        yield


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "audit.jsonl"


@pytest.fixture
async def scribes(store: Store, settings: Settings, file: Path) -> AsyncIterator[tuple[Books, Books]]:
    other = await Store.connect(store.url, settings)
    yield Books(store, audit_file=file, block=0.1), Books(other, audit_file=file, block=0.1)
    await other.aclose()


def mode(file: Path) -> int:
    return file.stat().st_mode


def torn(file: Path) -> bytes:
    """Cut the file off within its last line, as a crash does, ahead of its position: → what it was."""
    whole = file.read_bytes()
    file.with_name(f"{file.name}.position").unlink()
    file.write_bytes(whole[:-5])
    return whole


def move(file: Path, number: int) -> None:
    file.rename(file.with_suffix(f".{number}"))


def runs_in(file: Path) -> list[str]:
    return [line["run_id"] for line in lines_of(file)] if file.exists() else []


async def note(books: Books, *run_ids: str) -> None:
    for run_id in run_ids:
        await books.ledger.audit.note("cancel", run_id=run_id)


async def test_each_entry_is_written_once_by_one_of_several(scribes: tuple[Books, Books], file: Path) -> None:
    first, second = scribes
    await note(first, "r1")
    async with writing(second):
        async with writing(first):
            await note(second, "r2", "r3")
            await until(lambda: len(runs_in(file)) == 3)
        await note(first, "r4")
        await until(lambda: len(runs_in(file)) == 4)
    await note(first, "r5")
    async with writing(first):
        await until(lambda: len(runs_in(file)) == 5)
    assert runs_in(file) == ["r1", "r2", "r3", "r4", "r5"]
    assert mode(file) & 0o077 == 0
    assert [line["id"] for line in lines_of(file)] == [e.id for e in await first.audited()]


async def test_a_line_that_a_crash_tore_is_written_again(scribes: tuple[Books, Books], file: Path) -> None:
    books, _ = scribes
    await note(books, "r1", "r2", "r3")
    async with writing(books):
        await until(lambda: len(runs_in(file)) == 3)
    whole = torn(file)
    async with writing(books):
        await until(lambda: file.read_bytes() == whole)


async def test_a_file_that_was_moved_away_is_begun_anew(scribes: tuple[Books, Books], file: Path) -> None:
    books, other = scribes
    await note(books, "r1")
    async with writing(books):
        await until(lambda: runs_in(file) == ["r1"])
        move(file, 1)
        await note(books, "r2")
        await until(lambda: runs_in(file) == ["r2"])
    move(file, 2)
    async with writing(other):
        await note(books, "r3")
        await until(lambda: runs_in(file) == ["r3"])


async def test_what_the_stream_dropped_meanwhile_is_said(scribes: tuple[Books, Books], file: Path) -> None:
    books, _ = scribes
    await note(books, "r1")
    async with writing(books):
        await until(lambda: runs_in(file) == ["r1"])
    await note(books, "r2", "r3")
    dropped = [e.id for e in await books.audited()]
    await books.store.call("XTRIM", books.ledger.audit.key, "MAXLEN", 1)
    async with writing(books):
        await until(lambda: len(lines_of(file)) == 3)
    gap = lines_of(file)[1]
    assert (gap["kind"], gap["id"], gap["earliest"]) == ("audit.gap", dropped[0], dropped[2])


async def test_without_the_setting_nothing_is_written(books: Books) -> None:
    async with asyncio.timeout(30):
        await AuditFile(books.store, books.ledger.audit).run_forever()
