"""Which slot a command belongs to, against what a server says."""

from __future__ import annotations

import pytest

from broker.keys import Keys
from broker.slots import SLOTS, first_key, slot_of
from tests.clusters import ClusterServers

KEYS = [
    b"",
    b"a",
    b"{a}b",
    b"x{a}",
    b"{}a",
    b"{}{a}",
    b"{a",
    b"a}",
    b"{a}{b}",
    b"{{a}}",
    b"\xff{\x00}\r\n",
    b"foo{bar}zap",
]


@pytest.mark.parametrize("key", KEYS)
def test_slots_are_those_of_the_server(redis7_cluster: ClusterServers, key: bytes) -> None:
    assert slot_of(key) == redis7_cluster.nodes[0].command("CLUSTER", "KEYSLOT", key)
    assert 0 <= slot_of(key) < SLOTS


@pytest.mark.parametrize(
    "command",
    [
        ("GET", "k"),
        (b"xadd", b"k", "MAXLEN", 1, "*", "a", "b"),
        ("EVAL", "return 1", 2, "k", "l", "x"),
        (b"EVALSHA", b"0" * 40, 1, b"k", b"streams", b"x"),
        ("XREAD", "COUNT", 10, "BLOCK", 5, "STREAMS", "k", "l", "0", "0"),
        ("XREADGROUP", "GROUP", "streams-of", "c", "COUNT", 1, "streams", "k", ">"),
        ("XGROUP", "CREATE", "k", "g", "0"),
        ("XINFO", "CONSUMERS", "k", "g"),
        ("OBJECT", "ENCODING", "k"),
    ],
)
def test_the_key_of_a_command_is_found(redis7_cluster: ClusterServers, command: tuple[str | bytes | int, ...]) -> None:
    assert first_key(command) == b"k"
    words = [word if isinstance(word, bytes) else str(word) for word in command]
    told = redis7_cluster.nodes[0].command("COMMAND", "GETKEYS", *words)
    assert isinstance(told, list)
    assert told[0] == b"k"


@pytest.mark.parametrize(
    "command", [("PING",), ("TIME",), ("EVAL", "return 1", 0, "x"), ("SCRIPT", "LOAD", "x"), ("INFO",)]
)
def test_a_command_may_have_no_key(command: tuple[str | int, ...]) -> None:
    assert first_key(command) is None


def test_what_one_script_touches_shares_a_slot() -> None:
    keys = Keys("some-name", 64)
    run, p = "run_1", keys.partition("run_1")
    of_a_run = [keys.run(run), keys.items(run), keys.control(run), keys.ids(run), keys.owners(run)]
    of_a_run += [keys.live(p), keys.runs(p), keys.bus(p), keys.idempotency(p, "d"), keys.wake(keys.items(run), "lane")]
    session = keys.session, keys.session_runs, keys.session_open, keys.session_messages, keys.session_events
    index = [keys.sessions(name) for name in ("index", "changes", "version", "followed")]
    for together in (of_a_run, [key("s") for key in session], index):
        assert len({slot_of(key) for key in together}) == 1


def test_runs_and_sessions_share_the_slots_of_the_partitions() -> None:
    keys = Keys("some-name", 16)
    slots = {slot_of(keys.bus(p)) for p in range(16)}
    assert len(slots) == 16
    assert {slot_of(keys.items(f"r{n}")) for n in range(500)} == slots
    assert {slot_of(keys.session_events(f"s{n}")) for n in range(500)} == slots
