"""``deploy/nginx.conf``: nginx takes it, and it agrees with the gateway. tests/e2e runs it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import uvicorn

from broker.settings import Settings
from tests.servers import free_port
from tests.shipped_nginx import SHIPPED, configured, nginx_binary


def test_nginx_accepts_the_configuration(tmp_path: Path) -> None:
    config = configured(tmp_path, free_port(), [1, 2])
    command = [nginx_binary(), "-t", "-q", "-c", str(config), "-g", f"error_log {tmp_path}/error.log;"]
    done = subprocess.run(command, capture_output=True, text=True)
    # From 1.25.1 on nginx would rather have `http2 on;`, which the one of Debian 12 does not know.
    said = [line for line in (done.stdout + done.stderr).splitlines() if '"http2" parameter is deprecated' not in line]
    assert (done.returncode, said) == (0, [])


def test_the_proxy_and_the_gateway_agree_on_limits() -> None:
    text = SHIPPED.read_text()
    settings = Settings.model_construct()
    (body,) = re.findall(r"client_max_body_size (\d+)m;", text)
    assert int(body) << 20 == settings.body_max_bytes
    server, alive, result = (int(seconds) for seconds in re.findall(r"proxy_read_timeout (\d+)s;", text))
    assert server >= 3 * settings.heartbeat > alive
    assert result > settings.result_wait_max
    (idle,) = re.findall(r"^ +keepalive_timeout (\d+)s;", text, re.MULTILINE)
    assert int(idle) < uvicorn.Config("app").timeout_keep_alive
    (slow,) = re.findall(r"send_timeout (\d+)s;", text.replace("proxy_send_timeout", ""))
    assert int(slow) > settings.stall_limit
