"""Every key name, and the partition of a run.

A run's partition is ``crc32(run_id) mod P``; the partition number is the keys' hash tag, so all keys that one
script touches lie in one Cluster slot (source: docs/protocol.md, “Redis”).
"""

from __future__ import annotations

from zlib import crc32

__all__ = ["Keys"]


class Keys:
    """Key names under one namespace and one number of partitions. All are ``bytes``."""

    def __init__(self, namespace: str, partitions: int) -> None:
        self.namespace = namespace
        self.partitions = partitions
        self._prefix = namespace.encode() + b":"

    def partition(self, name: str) -> int:
        """The partition of a run id (or of any other name that is spread the same way)."""
        return crc32(name.encode()) % self.partitions

    def _tag(self, partition: int) -> bytes:
        return b"%b{%d}:" % (self._prefix, partition)

    def layout(self) -> bytes:
        return self._prefix + b"layout"

    def secret(self) -> bytes:
        return self._prefix + b"secret"

    def run(self, run_id: str) -> bytes:
        return self._tag(self.partition(run_id)) + b"run:" + run_id.encode()

    def items(self, run_id: str) -> bytes:
        return self.run(run_id) + b":items"

    def control(self, run_id: str) -> bytes:
        return self.run(run_id) + b":control"

    def owners(self, run_id: str) -> bytes:
        return self.run(run_id) + b":owners"

    def live(self, partition: int) -> bytes:
        return self._tag(partition) + b"live"

    def runs(self, partition: int) -> bytes:
        return self._tag(partition) + b"runs"

    def bus(self, partition: int) -> bytes:
        return self._tag(partition) + b"bus"

    def idempotency(self, partition: int, digest: str) -> bytes:
        return self._tag(partition) + b"idem:" + digest.encode()

    def wake(self, partition: int, process: str) -> bytes:
        return self._tag(partition) + b"wake:" + process.encode()

    def queue(self, name: str) -> bytes:
        return self._prefix + b"queue:" + name.encode()
