"""Settings: one frozen object, read once from the environment (``RUNCAST_…``). Nothing else reads it.

An empty variable counts as one that is not set.

Durations are seconds, sizes are bytes unless the name says otherwise.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["Settings"]

_KIB, _MIB = 1 << 10, 1 << 20


def _default_data_dir() -> Path:
    return Path.home() / ".local" / "share" / "runcast"


class Settings(BaseSettings):
    """Everything that an operator can set. ``RUNCAST_RUN_TTL=3600`` sets ``run_ttl``."""

    model_config = SettingsConfigDict(env_prefix="RUNCAST_", env_ignore_empty=True, frozen=True, extra="ignore")

    # The store.
    redis_url: str = "embedded:"
    data_dir: Path = Field(default_factory=_default_data_dir)
    namespace: str = Field(default="runcast", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    partitions: int = Field(default=64, ge=1, le=4096)
    request_deadline: float = Field(default=2.0, gt=0)
    block: float = Field(default=5.0, gt=0, description="how long a lane's read blocks; its deadline is 2 s more")
    lanes: int = Field(default=2, ge=1, le=64)
    secret: SecretStr | None = None

    # Runs.
    lease: float = Field(default=15.0, gt=0)
    beat: float = Field(default=3.0, gt=0)
    sweep: float = Field(default=5.0, gt=0)
    queue: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    requeue_after: float = Field(default=10.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)
    run_ttl: float = Field(default=86_400.0, gt=0)
    record_ttl: float = Field(default=604_800.0, gt=0)
    run_max_items: int = Field(default=100_000, ge=1)
    run_max_bytes: int = Field(default=64 * _MIB, ge=1)
    item_max_bytes: int = Field(default=_MIB, ge=1024)
    bus_max_entries: int = Field(default=1_000, ge=1)

    # The publisher.
    publisher_items: int = Field(default=1_000, ge=1, description="bounded buffer: items waiting to be appended")
    publisher_bytes: int = Field(default=4 * _MIB, ge=1)
    resend_bytes: int = Field(default=8 * _MIB, ge=0, description="what was appended is kept this long for a resend")
    resend_items: int = Field(default=20_000, ge=0)
    outage_limit: float = Field(default=120.0, gt=0)

    # The hub.
    window_bytes: int = Field(default=_MIB, ge=1, description="recent items of one followed run kept in the process")
    read_bytes: int = Field(default=_MIB, ge=1024, description="aim of one range read")
    read_items: int = Field(default=1_000, ge=1)
    reads_at_once: int = Field(default=8, ge=1)
    heartbeat: float = Field(default=5.0, gt=0)
    cursor_seconds: float = Field(default=5.0, gt=0)
    cursor_items: int = Field(default=500, ge=1)
    high_water: int = Field(
        default=64 * _KIB, ge=1024, description="a socket's send buffer before its viewer is demoted"
    )
    stall_limit: float = Field(default=300.0, gt=0, description="a viewer that takes nothing for so long is cut")

    # The gateway.
    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65535)
    retry_ms: int = Field(default=2_000, ge=0)
    drain: float = Field(default=5.0, ge=0)
    disconnect_grace: float = Field(default=10.0, ge=0)
    body_max_bytes: int = Field(default=8 * _MIB, ge=1024)
    result_wait_max: float = Field(default=60.0, ge=0)

    # The worker.
    concurrency: int = Field(default=4, ge=1)
    input_timeout: float = Field(
        default=300.0, gt=0, le=31_536_000, description="what a person has to answer what a run asks"
    )
    worker_drain: float = Field(default=30.0, ge=0, description="what running runs get to end by themselves at SIGTERM")
