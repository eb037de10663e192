"""Which conversations of Hermes' store are shown, and as what; and that reading leaves no trace."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.webui.hermes_store import UnknownStore, read_sessions, signature
from tests.gateway.hermes_home import HermesHome
from tests.servers import eventually


@pytest.fixture(params=["write-ahead", "rollback"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HermesHome]:
    made = HermesHome(tmp_path / "hermes", write_ahead=request.param == "write-ahead")
    yield made
    made.close()


def ids(home: HermesHome, limit: int = 200) -> list[str]:
    return [session["session_id"] for session in read_sessions(home.path, limit)]


def one(home: HermesHome) -> dict[str, Any]:
    (found,) = read_sessions(home.path)
    return found


def test_a_conversation_as_it_is_listed(home: HermesHome) -> None:
    home.session("s1", at=1000.0, messages=3, source="telegram", model="m-1", title="Träume")
    assert one(home) == {
        "session_id": "s1",
        "title": "Träume",
        "model": "m-1",
        "message_count": 3,
        "created_at": 1000.0,
        "updated_at": 1002.0,
        "last_message_at": 1002.0,
        "source": "telegram",
        "source_tag": "telegram",
        "raw_source": "telegram",
        "session_source": "messaging",
        "source_label": "Telegram",
        "is_cli_session": False,
        "parent_session_id": None,
        "read_only": True,
    }


@pytest.mark.parametrize(
    ("source", "family", "label", "is_cli"),
    [
        ("cli", "cli", "CLI", True),
        ("oneshot", "cli", "CLI", True),
        ("tui", "cli", "TUI", True),
        ("wecom_callback", "messaging", "Wecom Callback", False),
        ("api_server", "api", "API", False),
        ("acp", "other", "Acp", False),
    ],
)
def test_sources_have_families_and_labels(home: HermesHome, source: str, family: str, label: str, is_cli: bool) -> None:
    home.session("s1", at=1.0, source=source)
    found = one(home)
    assert (found["session_source"], found["source_label"], found["is_cli_session"]) == (family, label, is_cli)
    assert found["title"] == f"{label} session"


@pytest.mark.parametrize("source", ["cron", "tool", "webui"])
def test_what_nobody_opened_by_hand_is_left_out(home: HermesHome, source: str) -> None:
    home.session("mine", at=1.0)
    home.session("other", at=2.0, source=source)
    assert ids(home) == ["mine"]


def test_an_empty_an_archived_and_a_hidden_session_are_left_out(home: HermesHome) -> None:
    home.session("empty", at=1.0, messages=0)
    home.session("archived", at=2.0, archived=1)
    home.session("hidden", at=3.0, hidden=1)
    home.session("shown", at=4.0)
    assert ids(home) == ["shown"]


def test_the_newest_message_comes_first_whenever_the_session_began(home: HermesHome) -> None:
    for n in range(5):
        home.session(f"s{n}", at=float(100 * n))
    home.say("s1", at=1000.0)
    assert ids(home) == ["s1", "s4", "s3", "s2", "s0"]
    assert ids(home, limit=2) == ["s1", "s4"]


def test_parts_of_a_compressed_conversation_are_one(home: HermesHome) -> None:
    home.session("a", at=100.0, messages=9, title="Plan", ended_at=110.0, end_reason="compression")
    home.session("b", at=110.0, title="Plan #2", parent_session_id="a", ended_at=120.0, end_reason="compression")
    home.session("c", at=120.0, messages=4, title="Plan #3", parent_session_id="b")
    found = one(home)
    assert (found["session_id"], found["title"], found["message_count"]) == ("c", "Plan", 4)
    assert (found["created_at"], found["updated_at"]) == (100.0, 123.0)


def test_a_part_without_messages_yet_leaves_the_one_before_it(home: HermesHome) -> None:
    home.session("a", at=100.0, ended_at=110.0, end_reason="compression")
    home.session("b", at=110.0, messages=0, parent_session_id="a")
    assert ids(home) == ["a"]


def test_a_branch_and_a_closed_parents_child_stay_by_themselves(home: HermesHome) -> None:
    home.session("a", at=100.0, ended_at=110.0, end_reason="compression")
    home.session("branch", at=111.0, parent_session_id="a", model_config={"_branched_from": "a"})
    home.session("closed", at=120.0, ended_at=121.0, end_reason="cli_close")
    home.session("child", at=130.0, parent_session_id="closed")
    assert ids(home) == ["child", "closed", "branch", "a"]


def test_a_part_of_a_branch_is_part_of_it_though_it_inherits_the_branchs_mark(home: HermesHome) -> None:
    mark = {"_branched_from": "a"}
    home.session("a", at=100.0, ended_at=110.0, end_reason="branched")
    home.session("b", at=111.0, parent_session_id="a", model_config=mark, end_reason="compression")
    home.session("c", at=120.0, parent_session_id="b", model_config=mark)
    assert ids(home) == ["c", "a"]


def test_delegated_work_is_nobodys_conversation(home: HermesHome) -> None:
    home.session("boss", at=100.0)
    home.session("hand", at=101.0, parent_session_id="boss", model_config={"_delegate_from": "boss"})
    assert ids(home) == ["boss"]


def test_another_source_is_another_conversation(home: HermesHome) -> None:
    home.session("a", at=100.0, source="telegram", end_reason="compression")
    home.session("b", at=110.0, source="cli", parent_session_id="a")
    assert ids(home) == ["b", "a"]


def test_a_ring_of_parents_ends(home: HermesHome) -> None:
    home.session("a", at=100.0, parent_session_id="b", end_reason="compression")
    home.session("b", at=110.0, parent_session_id="a", end_reason="compression")
    assert ids(home)[0] == "b"


@pytest.mark.parametrize("config", ["{", "[]", "7", '"x"', "[" * 100_000])
def test_a_configuration_that_is_none_hides_nothing(home: HermesHome, config: str) -> None:
    home.session("s1", at=1.0)
    home._db.execute("UPDATE sessions SET model_config = ?", (config,))
    assert ids(home) == ["s1"]


def test_a_time_that_is_none_is_null(home: HermesHome) -> None:
    home.session("s1", at=1.0)
    home._db.execute("UPDATE messages SET timestamp = 'yesterday'")
    found = one(home)
    assert (found["last_message_at"], found["updated_at"], found["created_at"]) == (None, 1.0, 1.0)


def test_an_older_hermes_without_the_newer_columns(tmp_path: Path) -> None:
    home = HermesHome(tmp_path / "hermes", newer=False)
    home.session("s1", at=1.0)
    home._db.execute("DROP TABLE messages")
    assert one(home)["updated_at"] == 1.0
    home._db.execute("ALTER TABLE sessions DROP COLUMN message_count")
    with pytest.raises(UnknownStore, match=r"state\.db has no sessions\.message_count"):
        read_sessions(home.path)
    home.close()


def test_before_hermes_ran_there_is_nothing_and_without_a_home_an_error(tmp_path: Path) -> None:
    assert read_sessions(tmp_path) == []
    assert signature(tmp_path) == ((0, 0, 0), (0, 0, 0))
    with pytest.raises(OSError, match="nowhere"):
        signature(tmp_path / "nowhere")


def test_what_is_no_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"hello, this is no database at all, and never was one" * 40)
    with pytest.raises(sqlite3.DatabaseError):
        read_sessions(tmp_path)
    (tmp_path / "state.db").write_bytes(b"")
    with pytest.raises(UnknownStore):
        read_sessions(tmp_path)


def test_a_home_with_odd_letters(tmp_path: Path) -> None:
    home = HermesHome(tmp_path / "a b?mode=rwc#%41é")
    home.session("s1", at=1.0)
    assert ids(home) == ["s1"]
    home.close()


@pytest.mark.parametrize("left", ["open", "closed", "killed"])
def test_reading_changes_nothing(tmp_path: Path, left: str) -> None:
    """However Hermes left it. ``-shm`` is SQLite's shared memory, not the store."""
    home = HermesHome(tmp_path / "hermes", write_ahead=True)
    home.session("s1", at=1.0)
    path = home.path
    if left == "closed":
        home.close()
    elif left == "killed":  # what a process that is killed leaves behind: everything, in the log
        path = tmp_path / "copy"
        path.mkdir()
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (path / name).write_bytes((home.path / name).read_bytes())
    before = contents(path)
    assert [session["session_id"] for session in read_sessions(path)] == ["s1"]
    assert contents(path) == before
    home.close()


def contents(path: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() if not f.name.endswith("-shm") else b"" for f in sorted(path.iterdir())}


@contextmanager
def only_reading(path: Path) -> Iterator[None]:
    """Without the right to write there. Root has that everywhere, and is nobody meanwhile."""
    path.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        assert not os.access(path, os.W_OK, effective_ids=True)
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(0o755)


@pytest.mark.parametrize("write_ahead", [True, False])
def test_a_home_that_may_only_be_read(write_ahead: bool) -> None:
    """As it is mounted beside a gateway, Hermes being elsewhere or not running."""
    with tempfile.TemporaryDirectory() as made:  # pytest's own directories let nobody else in
        Path(made).chmod(0o755)
        home = HermesHome(Path(made) / "hermes", write_ahead=write_ahead)
        home.session("s1", at=1.0)
        with only_reading(home.path):
            assert ids(home) == ["s1"]
        home.close()
        with only_reading(home.path):
            assert ids(home) == ["s1"]


async def test_the_signature_changes_when_something_is_written(home: HermesHome) -> None:
    home.session("s1", at=1.0)
    before = signature(home.path)
    assert signature(home.path) == before

    def written() -> bool:
        home.say("s1")  # again and again: within one tick of the file system's clock two writes look alike
        return signature(home.path) != before

    await eventually(written)
