"""Settings: one frozen object, read once from the environment (``RUNCAST_…``). Nothing else reads it.

An empty variable counts as one that is not set.

Durations are seconds, sizes are bytes unless the name says otherwise.
"""

from __future__ import annotations

from decimal import Decimal
from ipaddress import ip_network
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from broker.finite import FiniteSettings
from broker.money import MAX_DOLLARS

__all__ = ["Settings"]

_KIB, _MIB = 1 << 10, 1 << 20


def _default_data_dir() -> Path:
    return Path.home() / ".local" / "share" / "runcast"


class Settings(FiniteSettings):
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
    session_busy: Literal["wait", "refuse"] | None = Field(
        default=None, description="a run whose session has an open one; none: chats wait, other runs do not care"
    )
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
    windows_memory: int = Field(
        default=256 * _MIB,
        ge=0,
        description="what the windows of all followed runs may take; beyond, the largest shrink",
    )
    read_bytes: int = Field(default=_MIB, ge=1024, description="aim of one range read")
    read_items: int = Field(default=1_000, ge=1)
    reads_at_once: int = Field(default=8, ge=1)
    pace: float = Field(
        default=0.02, ge=0, le=1, description="items of a run with many viewers are sent together for so long"
    )
    heartbeat: float = Field(default=5.0, gt=0)
    cursor_seconds: float = Field(default=5.0, gt=0)
    cursor_items: int = Field(default=500, ge=1)
    high_water: int = Field(
        default=64 * _KIB, ge=1024, le=2**31 - 1, description="a socket's send buffer before its viewer is demoted"
    )
    stall_limit: float = Field(default=300.0, gt=0, description="a viewer that takes nothing for so long is cut")
    viewers_memory: int = Field(
        default=256 * _MIB, ge=1024, description="what waits for all viewers of a process; beyond, the slowest are cut"
    )

    # The gateway.
    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65535)
    retry_ms: int = Field(default=2_000, ge=0)
    drain: float = Field(default=5.0, ge=0)
    disconnect_grace: float = Field(default=10.0, ge=0)
    body_max_bytes: int = Field(default=8 * _MIB, ge=1024)
    result_wait_max: float = Field(default=60.0, ge=0)

    principal_header: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9-]{1,64}$", description="who a proxy that asks says that the caller is"
    )

    # Money, in US dollars, and the audit.
    cost_cap: Decimal | None = Field(default=None, ge=0, le=MAX_DOLLARS, description="a day (UTC), all together")
    cost_cap_principal: Decimal | None = Field(default=None, ge=0, le=MAX_DOLLARS, description="a day, of each")
    cost_reservation: Decimal | None = Field(
        default=None, ge=0, le=MAX_DOLLARS, description="what a run holds back; none: what the model's last runs cost"
    )
    audit_max_entries: int = Field(default=50_000, ge=0, description="0: no audit")
    audit_ttl: float = Field(default=2_592_000.0, gt=0)
    audit_text: bool = Field(default=False, description="what was asked and answered is audited too")
    audit_file: Path | None = Field(default=None, description="one process of those that name a file writes it")

    # The worker.
    concurrency: int = Field(default=4, ge=1)
    input_timeout: float = Field(
        default=300.0, gt=0, le=31_536_000, description="what a person has to answer what a run asks"
    )
    tasks: int = Field(default=100, ge=0, description="tasks that a worker has at once; 0: none")
    tasks_dir: Path | None = Field(default=None, description="checkpoints of tasks; None: data_dir/tasks")
    worker_drain: float = Field(default=30.0, ge=0, description="what running runs get to end by themselves at SIGTERM")
    worker_metrics_port: int | None = Field(default=None, ge=1, le=65535, description="/metrics, /healthz, /readyz")

    # Files: what runs are given and what they leave (docs/artifacts.md).
    workspaces: Path | None = Field(default=None, description="a directory a session; none: below data_dir")
    workspace_ttl: float = Field(default=604_800.0, ge=0, description="unused for so long they are removed; 0: kept")
    artifact_store: str = Field(default="file:", description="file:[DIR], s3://, gs:// or az://")
    artifact_key_id: SecretStr | None = None
    artifact_secret_key: SecretStr | None = None
    artifact_ttl: float = Field(default=604_800.0, ge=0, description="stored files are kept so long; 0: for ever")
    inbound_count: int = Field(default=16, ge=0)
    inbound_bytes: int = Field(default=32 * _MIB, ge=0)
    inbound_total_bytes: int = Field(default=64 * _MIB, ge=0)
    inbound_seconds: float = Field(default=60.0, gt=0, description="for all of a run's, from the first request on")
    inbound_redirects: int = Field(default=5, ge=0, le=20)
    inbound_types: str = Field(default="*", description="media types, image/* too, separated by commas")
    inbound_networks: str = Field(default="", description="networks that are not public and still may be asked")
    outbound_count: int = Field(default=100, ge=0, le=1_000)
    outbound_bytes: int = Field(default=64 * _MIB, ge=0)
    outbound_total_bytes: int = Field(default=256 * _MIB, ge=0)
    outbound_seconds: float = Field(default=60.0, gt=0)

    # What every process says of itself.
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    traces: bool = False

    @field_validator("inbound_networks")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        """Said at start: a network that is not understood would only be missed once it is needed."""
        for part in filter(None, (part.strip() for part in value.split(","))):
            ip_network(part)
        return value

    @property
    def tasks_path(self) -> Path:
        """Where the checkpoints of tasks lie."""
        return self.tasks_dir or self.data_dir / "tasks"

    @property
    def tasks_queue(self) -> str:
        """The queue of tasks. They take no slot of those that their own steps need."""
        return f"{self.queue}.tasks"
