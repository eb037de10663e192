"""An S3-compatible server for the tests: SeaweedFS, from its package on PyPI, in one process of its own.

It checks signatures, so wrong credentials are refused as elsewhere; ``s3.json`` names one identity.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers import die_with_parent, free_port

__all__ = ["ObjectServer", "weed_binary"]

_PORTS = "master.port master.port.grpc volume.port volume.port.grpc filer.port filer.port.grpc s3.port s3.port.grpc"
_OFF = ("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0")


def weed_binary() -> str | None:
    """SeaweedFS' one program, beside this Python or on PATH; None."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


class ObjectServer:
    """Started by ``start``; ``stop`` ends it, and a new ``start`` finds what was there."""

    bucket = "runcast-tests"
    key_id, secret_key = "runcast-tests-id", "runcast-tests-secret"

    def __init__(self, directory: Path) -> None:
        binary = weed_binary()
        assert binary, "there is no weed"
        self.directory, self._binary = directory, binary
        self._ports = {name: free_port() for name in (*_PORTS.split(), "admin.port", "admin.port.grpc")}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    def url(self, prefix: str) -> str:
        """For ``RUNCAST_ARTIFACT_STORE``."""
        return f"s3://{self.bucket}/{prefix}?endpoint={self.endpoint}"

    def start(self, timeout: float = 40.0) -> ObjectServer:
        """Returns once it serves the bucket."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        credentials = [{"accessKey": self.key_id, "secretKey": self.secret_key}]
        identity = {"name": "tests", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}
        config = self.directory / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        here = [f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={self.bucket}", f"-s3.config={config}"]
        ports = [f"-{name}={port}" for name, port in self._ports.items()]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "mini", *here, *ports, *_OFF],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=die_with_parent,
            )
        self._wait(timeout)
        return self

    def _wait(self, timeout: float) -> None:
        assert self._process
        end = time.monotonic() + timeout
        while not self._serves():
            log = (self.directory / "server.log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"weed ended: {log}"
            assert time.monotonic() < end, f"weed is not ready: {log}"
            time.sleep(0.05)

    def _serves(self) -> bool:
        """Asked without a signature it refuses a bucket that is there, and knows none that is not."""
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(f"{self.endpoint}/{self.bucket}/", timeout=2).close()
                return True
            except urllib.error.HTTPError as error:
                return error.code == 403 and (self.directory / "data").exists() and self._bucket_made()
        return False

    def _bucket_made(self) -> bool:
        url = f"http://127.0.0.1:{self._ports['filer.port']}/buckets/{self.bucket}/"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=2).close()
            return True
        return False

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        for port in self._ports.values():  # it makes them there, whatever it is told
            for sock in Path("/tmp").glob(f"seaweedfs-*{port}.sock"):
                sock.unlink(missing_ok=True)
