"""Every key name, and the partition of a run.

A run's partition is ``crc32(run_id) mod P``; the partition number is the keys' hash tag, so all keys that one
script touches lie in one Cluster slot (source: docs/protocol.md, “Redis”). A session lies in the partition of its id.
"""

from __future__ import annotations

from zlib import crc32

from broker.slots import tag_of

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

    def logged_out(self, nonce: str) -> bytes:
        """A login that was ended before its time."""
        return self._prefix + b"login:out:" + nonce.encode()

    def login_tries(self, who: str) -> bytes:
        """How often the password was tried from one address."""
        return self._prefix + b"login:tries:" + who.encode()

    def run(self, run_id: str) -> bytes:
        return self._tag(self.partition(run_id)) + b"run:" + run_id.encode()

    def items(self, run_id: str) -> bytes:
        return self.run(run_id) + b":items"

    def control(self, run_id: str) -> bytes:
        return self.run(run_id) + b":control"

    def ids(self, run_id: str) -> bytes:
        return self.run(run_id) + b":ids"

    def task(self, run_id: str) -> bytes:
        """Of a task's run: its newest version, a hash."""
        return self.run(run_id) + b":task"

    def decisions(self, run_id: str) -> bytes:
        """Of a task's run: what people decided, a stream."""
        return self.run(run_id) + b":decisions"

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

    def wake(self, beside: bytes, lane: str) -> bytes:
        """A key in the slot of ``beside``: whoever writes it wakes that lane."""
        return b"%b{%b}:wake:%b" % (self._prefix, tag_of(beside), lane.encode())

    def queue(self, name: str) -> bytes:
        return self._prefix + b"queue:" + name.encode()

    def tasks(self) -> bytes:
        """All tasks by creation: a sorted set."""
        return self._prefix + b"tasks"

    def task_hosts(self) -> bytes:
        """Where workers keep the checkpoints of tasks: a hash."""
        return self._prefix + b"tasks:hosts"

    def session(self, session_id: str) -> bytes:
        """What is known of a session: a hash."""
        return self._session(session_id) + b"session"

    def session_runs(self, session_id: str) -> bytes:
        """Its runs, by creation: a sorted set."""
        return self._session(session_id) + b"runs"

    def session_open(self, session_id: str) -> bytes:
        """Those that have not ended: a sorted set."""
        return self._session(session_id) + b"open"

    def session_messages(self, session_id: str) -> bytes:
        """How many messages each ended run has: a hash."""
        return self._session(session_id) + b"messages"

    def session_events(self, session_id: str) -> bytes:
        """Its channel: a capped stream."""
        return self._session(session_id) + b"events"

    def _session(self, session_id: str) -> bytes:
        # Not in a slot of its own: a gateway would need a connection for each session that is watched.
        return b"%bs:%b:" % (self._tag(self.partition(session_id)), session_id.encode())

    def sessions(self, name: str) -> bytes:
        """Of all sessions together: ``index``, ``changes``, ``version``, ``followed``."""
        return self._prefix + b"{sessions}:" + name.encode()

    def ledger(self, name: str) -> bytes:
        """In the ledger's slot: ``held``, ``open``, ``audit``, ``day:YYYY-MM-DD``, ``settled:RUN``, ``costs:…``."""
        return self._prefix + b"{ledger}:" + name.encode("utf-8", "surrogatepass")

    def artifacts_swept(self) -> bytes:
        """There while it is nobody's turn to look for stored files that are too old."""
        return self._prefix + b"artifacts:swept"
