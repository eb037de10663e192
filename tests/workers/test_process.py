"""Supervised processes, with real ones: whoever is killed, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers import alive, eventually
from workers.hermes import leftovers
from workers.hermes.command import ARGUMENT_MAX, MARK, environment
from workers.hermes.process import NotStarted, SupervisedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")

STUBBORN = "trap '' TERM INT HUP; echo stubborn; while :; do sleep 0.2; done"
TREE = f"setsid sh -c \"{STUBBORN}\" & trap 'exit 130' TERM; echo ready; while :; do sleep 0.1; done"
"""A command that obeys SIGTERM, with a child in a session of its own that does not."""


@pytest.fixture
async def mark() -> AsyncIterator[str]:
    """A mark, and the check that no process carries it afterwards."""
    mark = uuid4().hex
    yield mark
    left = leftovers.marked(mark)
    leftovers.end(mark, 0.0)
    assert not left


async def _start(mark: str, *argv: str, grace: float = 5.0) -> SupervisedProcess:
    return await SupervisedProcess.start(argv, environment(os.environ, mark), grace=grace, mark=mark)


async def _read_until(process: SupervisedProcess, *wanted: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(30):
        while not all(word in seen for word in wanted):
            chunk = await process.read()
            assert chunk, seen
            seen += chunk
    return seen


async def _all(process: SupervisedProcess) -> bytes:
    return b"".join([chunk async for chunk in _chunks(process)])


async def _chunks(process: SupervisedProcess) -> AsyncIterator[bytes]:
    while chunk := await process.read():
        yield chunk


async def test_output_exit_code_and_standard_error(mark: str) -> None:
    process = await _start(mark, "sh", "-c", "cat; echo out; echo err >&2; exit 3")
    assert await _all(process) == b"out\n"
    assert await process.wait() == 3
    await process.aclose()
    assert process.stderr == "err\n"
    assert process.killed == 0


@pytest.mark.parametrize("turns", range(1, 9))
async def test_a_start_that_is_cancelled_at_any_turn_leaves_nothing(mark: str, turns: int) -> None:
    before = set(os.listdir("/proc/self/fd"))
    starting = asyncio.create_task(_start(mark, "sleep", "600", grace=0.1))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not leftovers.marked(mark)
    await eventually(lambda: set(os.listdir("/proc/self/fd")) <= before, 10)


async def test_input_arrives_in_order_and_ends(mark: str) -> None:
    env = environment(os.environ, mark)
    process = await SupervisedProcess.start(["cat"], env, grace=5, mark=mark, stdin=True)
    long = b"x" * (1 << 20)
    process.write(b"first\n")
    process.write(long)
    process.close_stdin()
    assert await _all(process) == b"first\n" + long
    assert await process.wait() == 0
    process.write(b"to nobody")
    await process.aclose()
    process.write(b"to nobody")


async def test_input_that_is_not_read_keeps_nobody(mark: str) -> None:
    env = environment(os.environ, mark)
    process = await SupervisedProcess.start(["sleep", "60"], env, grace=5, mark=mark, stdin=True)
    process.write(b"x" * (1 << 20))
    async with asyncio.timeout(30):
        await process.aclose()


async def test_a_working_directory(mark: str, tmp_path: Path) -> None:
    env = environment(os.environ, mark)
    process = await SupervisedProcess.start(["pwd"], env, grace=5, mark=mark, cwd=str(tmp_path))
    assert await _all(process) == f"{tmp_path}\n".encode()
    await process.aclose()
    with pytest.raises(NotStarted) as gone:
        await SupervisedProcess.start(["pwd"], env, grace=5, mark=mark, cwd=str(tmp_path / "gone"))
    assert not gone.value.missing


async def test_a_signal_is_a_negative_exit_code(mark: str) -> None:
    process = await _start(mark, "sh", "-c", "kill -KILL $$")
    assert await process.wait() == -9
    await process.aclose()


async def test_a_program_that_is_missing() -> None:
    with pytest.raises(NotStarted) as missing:
        await _start("none", "/nowhere/hermes")
    assert missing.value.missing
    assert "/nowhere/hermes" in str(missing.value)


async def test_the_longest_argument_arrives_whole(mark: str) -> None:
    longest = "x" * (ARGUMENT_MAX - 1)
    process = await _start(mark, "sh", "-c", 'printf %s "$1" | wc -c', "sh", longest)
    assert int(await _all(process)) == len(longest)
    await process.aclose()
    with pytest.raises(NotStarted):
        await _start(mark, "true", longest + "x")


SAID = """
import asyncio, os, sys
from workers.hermes.command import environment
from workers.hermes.process import SupervisedProcess
async def main():
    mark, python = sys.argv[1:]
    argv = [python, "-c", "import sys; sys.stdout.write(ascii(sys.argv[1]) + sys.argv[1])", "\\u00fc\\u20ac\\U0001f600"]
    process = await SupervisedProcess.start(argv, environment(os.environ, mark), grace=1.0, mark=mark)
    said = b""
    while chunk := await process.read():
        said += chunk
    await process.aclose()
    sys.stdout.buffer.write(said)
asyncio.run(main())
"""


async def test_arguments_are_the_same_in_a_locale_that_lacks_their_characters(mark: str) -> None:
    """As in one whose encoding is Latin-1. PYTHONHOME is the worker's own, and breaks another Python."""
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    env = {**os.environ, **locale, "PYTHONHOME": sys.base_prefix}
    worker = [sys.executable, "-c", SAID, mark, sys.executable]
    ran = await asyncio.to_thread(subprocess.run, worker, env=env, capture_output=True)
    assert ran.stdout.decode() == r"'\xfc\u20ac\U0001f600'" + "ü€😀", ran.stderr.decode()


async def test_what_a_command_leaves_behind_ends_with_it(mark: str) -> None:
    argv = ["sh", "-c", f'setsid sh -c "{STUBBORN}" & read go; exit 0']
    process = await SupervisedProcess.start(argv, environment(os.environ, mark), grace=5.0, mark=mark, stdin=True)
    await _read_until(process, b"stubborn")
    process.close_stdin()
    await _all(process)
    assert await process.wait() == 0
    assert not leftovers.marked(mark)
    await process.aclose()
    assert process.killed >= 1


async def test_a_double_fork_that_left_its_environment_behind_ends_too(mark: str) -> None:
    daemon = "setsid env -i sh -c 'echo $$; exec sleep 300' &"
    argv = ["sh", "-c", f"({daemon}) ; read go"]
    process = await SupervisedProcess.start(argv, environment(os.environ, mark), grace=5.0, mark=mark, stdin=True)
    pid = int(await _read_until(process, b"\n"))
    process.close_stdin()
    await _all(process)
    await process.aclose()
    assert not alive(pid)


async def test_a_stop_gives_the_grace_and_then_kills_everything(mark: str) -> None:
    process = await _start(mark, "sh", "-c", TREE)
    await _read_until(process, b"ready", b"stubborn")
    assert len(leftovers.marked(mark)) >= 3
    process.stop()
    assert await process.wait() == 130
    await process.aclose()
    assert process.killed >= 1


async def test_a_command_that_ignores_its_stop_is_killed_after_the_grace(mark: str) -> None:
    process = await _start(mark, "sh", "-c", STUBBORN, grace=0.5)
    await _read_until(process, b"stubborn")
    begun = time.monotonic()
    process.stop()
    assert await process.wait() == -9
    assert 0.4 < time.monotonic() - begun < 30
    await process.aclose()


async def test_a_stopped_command_is_ended_as_well(mark: str) -> None:
    process = await _start(mark, "sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    await _read_until(process, b"ready")
    os.kill(process.pid, signal.SIGSTOP)
    process.stop()
    assert await process.wait() == 7
    await process.aclose()


async def test_kill_has_no_grace(mark: str) -> None:
    process = await _start(mark, "sh", "-c", STUBBORN, grace=60)
    await _read_until(process, b"stubborn")
    process.kill()
    async with asyncio.timeout(30):
        assert await process.wait() == -9
        await process.aclose()


async def test_a_command_that_writes_more_than_is_read_can_be_closed(mark: str) -> None:
    process = await _start(mark, "sh", "-c", "trap 'exit 0' TERM; while :; do echo xxxxxxxxxxxxxxxx; done", grace=1)
    await process.read()
    async with asyncio.timeout(30):
        await process.aclose()


async def test_a_command_waits_while_nobody_reads(mark: str) -> None:
    """Back-pressure: 8 MiB do not fit into what lies between, so the command cannot have ended."""
    process = await _start(mark, "sh", "-c", "head -c 8388608 /dev/zero; echo end >&2")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.5)
    assert process.stderr == ""
    assert len(await _all(process)) == 8 << 20
    await process.aclose()
    assert process.stderr == "end\n"


async def test_patience_lets_a_command_end_by_itself(mark: str) -> None:
    process = await _start(mark, "sh", "-c", "trap 'exit 9' TERM; echo x; sleep 0.4; exit 0")
    await _read_until(process, b"x")
    await process.aclose(patience=30)
    assert process.exit_code == 0


@pytest.mark.parametrize("who", ["command", "supervisor"])
async def test_sigkill_of_the_command_or_of_its_supervisor(mark: str, who: str) -> None:
    process = await _start(mark, "sh", "-c", TREE, grace=0.5)
    await _read_until(process, b"ready", b"stubborn")
    os.kill(process.pid if who == "command" else _supervisor_of(process.pid), signal.SIGKILL)
    async with asyncio.timeout(30):
        await _all(process)
        code = await process.wait()
    assert code == (-9 if who == "command" else None)
    assert not leftovers.marked(mark)
    await process.aclose()
    assert process.killed >= 1


def _supervisor_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


WORKER = f"""
import asyncio, os, sys
from workers.hermes.command import environment
from workers.hermes.process import SupervisedProcess
async def main():
    mark = sys.argv[1]
    env = environment(os.environ, mark)
    p = await SupervisedProcess.start(["sh", "-c", {TREE!r}], env, grace=1.0, mark=mark)
    while b"stubborn" not in await p.read(): pass
    print("up", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_however_the_worker_ends_nothing_is_left(mark: str, how: signal.Signals) -> None:
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, mark, stdout=asyncio.subprocess.PIPE)
    try:
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"up\n"
        assert leftovers.marked(mark)
        worker.send_signal(how)
        await worker.wait()
        await eventually(lambda: not leftovers.marked(mark), 10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()


async def test_a_cancelled_close_still_ends_everything(mark: str) -> None:
    process = await _start(mark, "sh", "-c", TREE, grace=1)
    await _read_until(process, b"ready", b"stubborn")
    closing = asyncio.create_task(process.aclose(patience=60))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await eventually(lambda: not leftovers.marked(mark), 10)


def test_the_mark_is_compared_whole() -> None:
    mark = uuid4().hex
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: mark + "0"}) as other:
        assert leftovers.marked(mark) == set()
        assert leftovers.marked(mark + "0") == {other.pid}
        other.kill()
