"""``runcast serve`` and ``worker`` as processes: how they start, and how they end."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.ops.conftest import RUN, Command, Process
from tests.servers import RedisServer, free_port

LISTENING = re.compile(r"listening on 127\.0\.0\.1, port (\d+)\n")
SCRIPTED = ("--runner", "scripted", "--run-id", "r1", "--metadata")


def port_of(process: Process) -> int:
    return int(process.until(LISTENING, err=True)[1])


def get(port: int, path: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.status, answer.read()


def ready(port: int) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            if get(port, "/readyz")[0] == 200:
                return
        except OSError:
            assert time.monotonic() < end


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_gateway_serves_the_store_that_was_named_and_ends_well(runcast: Command, number: signal.Signals) -> None:
    runcast.imported("r1")
    store = runcast.environment["RUNCAST_REDIS_URL"]
    process = runcast.start("serve", "--port", "0", "--redis", store, RUNCAST_REDIS_URL="redis://127.0.0.1:1/0")
    port = port_of(process)
    ready(port)
    assert json.loads(get(port, "/v1/runs/r1")[1])["status"] == "completed"
    process.signal(number)
    result = process.end()
    assert result.code == 0
    assert "Traceback" not in result.err


def test_two_processes_share_a_port(runcast: Command) -> None:
    runcast.imported("r1")
    process = runcast.start("serve", "--port", "0", "--workers", "2")
    port = port_of(process)
    ready(port)
    assert b"event: end" in get(port, "/v1/runs/r1/stream")[1]
    process.signal(signal.SIGTERM)
    assert process.end().code == 0


def test_a_port_in_use_is_said(runcast: Command, taken: int) -> None:
    result = runcast("serve", "--port", str(taken))
    assert result.code == 6
    assert f"port {taken}" in result.err
    assert "--port" in result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--redis", "foo:1"), "its scheme is not known"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--host", "no.such.host.invalid"), "--host takes an address of this machine"),
    ],
)
def test_what_a_gateway_can_never_serve_is_said_before_it_starts(
    runcast: Command, arguments: tuple[str, ...], says: str
) -> None:
    result = runcast("serve", "--port", "0", *arguments)
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",)])
def test_a_child_ends_with_its_parents_pipe(runcast: Command, command: tuple[str, ...]) -> None:
    process = runcast.start(*command, "--stop-with-stdin")
    if command[0] == "serve":
        ready(port_of(process))
    assert process.popen.stdin
    process.popen.stdin.close()
    # -15: it ended before it had begun to listen to signals.
    assert process.popen.wait(20) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_drains(runcast: Command, worker: Process, number: signal.Signals) -> None:
    running = runcast.start("run", "x", *SCRIPTED, "script=tokens=40 rate=20")
    running.until("w2 ")
    worker.signal(number)
    assert running.end().code == 0, "what runs may end"
    result = worker.end()
    assert (result.code, result.err) == (0, "")


def test_a_second_signal_ends_it_at_once_fence_first(runcast: Command, worker: Process) -> None:
    running = runcast.start("run", "x", *SCRIPTED, "script=tokens=9000 rate=20")
    running.until("w2 ")
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    assert worker.end().code == 0
    result = running.end()
    assert result.code == 1
    assert "worker_stopped" in result.err


def test_a_worker_waits_for_its_store_and_can_be_stopped_meanwhile(runcast: Command, redis_server: RedisServer) -> None:
    redis_server.stop()
    process = runcast.start("worker", "--redis", redis_server.url)
    process.until("waiting for the store", err=True)
    redis_server.start()
    arguments = (*SCRIPTED, "script=tokens=2", "--redis", redis_server.url)
    assert runcast("run", "x", *arguments).out == "w1 w2 \n"
    process.signal(signal.SIGTERM)
    assert process.end().code == 0
    redis_server.stop()
    waiting = runcast.start("worker", "--redis", redis_server.url)
    waiting.until("waiting for the store", err=True)
    waiting.signal(signal.SIGTERM)
    assert waiting.end().code == 0


def test_a_workers_metrics_can_be_served(runcast: Command, taken: int) -> None:
    port = free_port()
    process = runcast.start("worker", "--metrics-port", str(port))
    end = time.monotonic() + 30
    while True:
        try:
            assert b"runcast_worker" in get(port, "/metrics")[1]
            break
        except OSError:
            assert time.monotonic() < end
    process.signal(signal.SIGTERM)
    assert process.end().code == 0


def test_a_worker_that_waits_for_its_store_lives_and_is_not_ready(runcast: Command) -> None:
    port = free_port()
    named = {"RUNCAST_WORKER_METRICS_PORT": str(port), "RUNCAST_REDIS_URL": "redis://127.0.0.1:1/0"}
    process = runcast.start("worker", **named)
    process.until("waiting for the store", err=True)
    assert get(port, "/healthz")[0] == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(port, "/readyz")
    assert refused.value.code == 503
    assert json.loads(refused.value.read()) == {"status": "waiting for the store"}
    process.signal(signal.SIGTERM)
    assert process.end().code == 0


def test_a_workers_port_in_use_is_said(runcast: Command, taken: int) -> None:
    result = runcast("worker", "--metrics-port", str(taken))
    assert result.code == 6
    assert "--metrics-port" in result.err


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_settings_of_the_log_are_read_and_checked(
    runcast: Command, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNCAST_LOG_FORMAT", "xml")
    result = runcast(command)
    assert result.code == 2
    assert "RUNCAST_LOG_FORMAT" in result.err


def test_an_option_says_more_than_the_variable(runcast: Command) -> None:
    process = runcast.start("serve", "--port", "0", "--log-level", "info", RUNCAST_LOG_LEVEL="error")
    port_of(process)
    silent = runcast.start("serve", "--port", "0", RUNCAST_LOG_LEVEL="error")
    process.until("Application startup complete", err=True)
    process.signal(signal.SIGTERM)
    assert process.end().code == 0
    silent.signal(signal.SIGTERM)
    assert silent.end().err == ""


def test_traces_without_what_they_need_are_refused_before_anything_starts(
    runcast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    monkeypatch.setenv("RUNCAST_TRACES", "true")
    for command in (("serve", "--port", "0"), ("worker",)):
        result = runcast(*command)
        assert (result.code, result.out) == (2, "")
        assert "runcast[otel]" in result.err


def test_an_import_is_seen_by_a_gateway_while_it_runs(runcast: Command) -> None:
    server = runcast.start("serve", "--port", "0")
    port = port_of(server)
    ready(port)
    publisher = runcast.start("import", "--run", "r1")
    publisher.until("\n")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/runs/r1/stream", timeout=30) as stream:
        publisher.write(RUN.splitlines()[0] + "\n")
        seen = b""
        while b'"text":"Hello"' not in seen:
            seen += stream.readline()
        publisher.write("\n".join(RUN.splitlines()[1:]))
        assert publisher.end().code == 0
        assert b"event: end" in stream.read()
