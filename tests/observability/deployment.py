"""A deployment in processes: two gateway processes behind one port, a worker with its own, a collector of traces."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.observability.collector import Collector, collecting
from tests.servers import die_with_parent, free_port
from tests.workers import fake_hermes

__all__ = ["SECRET", "Deployment", "deployed"]

SECRET = "a-secret-of-this-deployment"
_COMMAND = [sys.executable, "-P", "-m", "ops.cli"]


class Deployment:
    def __init__(self, directory: Path, collector: Collector, environment: dict[str, str]) -> None:
        self.collector, self._environment, self._directory = collector, environment, directory
        self.port, self.worker_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._start("gateway", "serve", "--port", str(self.port), "--workers", "2")
        self._start("worker", "worker", "--metrics-port", str(self.worker_port))
        for port in (self.port, self.worker_port):
            self.until(lambda port=port: self.get(port, "/readyz")[0] == 200)

    def _start(self, name: str, *arguments: str) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*_COMMAND, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        self._processes.append(process)

    def until(self, true: Any, timeout: float = 40.0) -> None:
        """Wait for a state."""
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError):
                if true():
                    return
            assert time.monotonic() < end, self.log("gateway") + self.log("worker")
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(30)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()

    def records(self, name: str) -> list[dict[str, Any]]:
        """Its log records so far. Every line is one."""
        return [json.loads(line) for line in self.log(name).splitlines()]

    # Requests.

    def get(self, port: int, path: str, **headers: str) -> tuple[int, str]:
        return self._send(urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers))

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json", **headers},
        )
        status, text = self._send(request)
        return status, json.loads(text)

    @staticmethod
    def _send(request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def run(self, script: str = "tokens=1", message: str = "x", runner: str = "scripted", **headers: str) -> str:
        body = {"runner": runner, "input": {"message": message}, "session_id": "s1", "metadata": {"script": script}}
        status, made = self.post("/v1/runs", body, **headers)
        assert status == 201, made
        return str(made["run_id"])

    def ended(self, run_id: str) -> dict[str, Any]:
        """Watch the run to its end: its outcome."""
        status, seen = self.get(self.port, f"/v1/runs/{run_id}/stream")
        assert status == 200
        assert "event: end" in seen
        outcome: dict[str, Any] = json.loads(self.get(self.port, f"/v1/runs/{run_id}/result")[1])
        return outcome

    def scrapes(self) -> tuple[str, str]:
        """The gateway's and the worker's."""
        return self.get(self.port, "/metrics")[1], self.get(self.worker_port, "/metrics")[1]


@contextmanager
def deployed(directory: Path, store: Path) -> Iterator[Deployment]:
    with collecting() as collector:
        deployment = Deployment(directory, collector, _environment(directory, store, collector.url))
        try:
            deployment.start()
            yield deployment
            deployment.stop()
        finally:
            deployment.kill()


def _environment(directory: Path, store: Path, collector: str) -> dict[str, str]:
    hermes = directory / "hermes"
    hermes.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_hermes.__file__} "$@"\n')
    hermes.chmod(0o755)
    ours = {
        "RUNCAST_REDIS_URL": f"embedded:{store}",
        "RUNCAST_NAMESPACE": f"t{uuid4().hex[:12]}",
        "RUNCAST_DATA_DIR": str(directory / "data"),
        "RUNCAST_SECRET": SECRET,
        "RUNCAST_SWEEP": "0.3",
        "RUNCAST_HEARTBEAT": "0.5",
        "RUNCAST_LOG_FORMAT": "json",
        "RUNCAST_TRACES": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "HERMES_BIN": str(hermes),
        "HERMES_MODE": "stream-json",
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **ours}
