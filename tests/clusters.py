"""Several servers that belong together: a Cluster of three primaries with a replica each, and a master with a replica
and three Sentinels. Real ones, on ports of their own, without persistence; they die with the test process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.slots import SLOTS, slot_of
from tests.servers import Certificates, RedisServer, free_port

__all__ = ["CALM_MS", "ClusterServers", "SentinelServers", "wait_for"]

CALM_MS = 60_000
"""A node time-out that no busy machine reaches."""

_NODE_TIMEOUT_MS = 1_500
_DOWN_AFTER_MS = 800


def wait_for(condition: Callable[[], object], timeout: float = 30.0) -> None:
    """Return once the condition holds and raises nothing; blocks. An AssertionError after ``timeout`` seconds."""
    end, why = time.monotonic() + timeout, "it is false"
    while True:
        try:
            if condition():
                return
        except (OSError, RuntimeError) as error:
            why = repr(error)
        assert time.monotonic() < end, f"not true within {timeout} s: {why}"
        time.sleep(0.02)


class ClusterServers:
    """``nodes[0:3]`` begin as primaries of a third of the slots each, ``nodes[3:6]`` as their replicas.

    ``node_timeout_ms``: after so long without a word a node counts as dead. Short for tests of failovers; long where
    none is meant to happen, however busy the machine.
    """

    def __init__(
        self,
        directory: Path,
        *,
        binary: str | None = None,
        certificates: Certificates | None = None,
        options: Sequence[str] = (),
        node_timeout_ms: int = _NODE_TIMEOUT_MS,
    ) -> None:
        more = [*options, "--cluster-node-timeout", str(node_timeout_ms)]
        self.nodes = [
            _ClusterNode(directory / f"node{n}", binary=binary, certificates=certificates, options=more)
            for n in range(6)
        ]

    @property
    def url(self) -> str:
        """Two of its nodes, a replica first."""
        return f"redis+cluster://127.0.0.1:{self.nodes[4].port},127.0.0.1:{self.nodes[0].port}"

    @property
    def tls_url(self) -> str:
        first = self.nodes[0]
        assert first.tls is not None
        return f"rediss+cluster://localhost:{first.tls_port}?ssl_ca_certs={first.tls.ca}"

    def start(self) -> ClusterServers:
        for node in self.nodes:
            node.start()
        first = self.nodes[0]
        for number, node in enumerate(self.nodes[:3]):
            node.command("CLUSTER", "ADDSLOTSRANGE", str(SLOTS * number // 3), str(SLOTS * (number + 1) // 3 - 1))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for node in self.nodes[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", str(first.inner_port), str(first.bus_port))
        for node, primary in zip(self.nodes[3:], self.nodes[:3], strict=True):
            name = primary.id
            wait_for(lambda node=node, name=name: name in node.known())
            node.command("CLUSTER", "REPLICATE", name)
        self.settle()
        return self

    def settle(self, timeout: float = 30.0) -> None:
        """Return once all nodes that run agree on the slots, and every replica among them has its primary's data."""
        wait_for(self._settled, timeout)

    def _settled(self) -> bool:
        running = [node for node in self.nodes if node.running]
        maps = {repr(sorted(node.slots())) for node in running}
        ok = all(b"cluster_state:ok" in node.cluster_info() for node in running)
        primaries = {port for *_, port in running[0].slots()}
        replicas = [node for node in running if node.port not in primaries]
        linked = all(b"master_link_status:up" in node.info("replication") for node in replicas)
        known = all(b"slave" in line or b"master" in line for node in running for line in node.lines())
        shown = sum(len(row) - 3 for row in running[0].shards())
        return len(maps) == 1 and ok and linked and known and shown == len(replicas)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def primary_of(self, key: bytes, asked: Sequence[_ClusterNode] = ()) -> _ClusterNode:
        """The node that has that key's slot, as one of those asked (default: of all) sees it."""
        slot = slot_of(key)
        for node in asked or self.nodes:
            if node.running:
                port = next(port for first, last, port in node.slots() if first <= slot <= last)
                return next(n for n in self.nodes if n.port == port)
        raise AssertionError("no node runs")

    def replica_of(self, primary: _ClusterNode) -> _ClusterNode:
        rows = [row for row in primary.shards() if row[2][1] == primary.port]
        ports = {node[1] for row in rows for node in row[3:]}
        return next(node for node in self.nodes if node.port in ports)

    @property
    def primaries(self) -> list[_ClusterNode]:
        ports = {port for *_, port in next(n for n in self.nodes if n.running).slots()}
        return [node for node in self.nodes if node.port in ports]

    def _epochs_agree(self) -> bool:
        told = [node.epochs() for node in self.primaries if node.running]
        return len({newest for newest, _ in told}) == 1 and len({own for _, own in told}) == len(told)

    def begin_migration(self, slot: int, source: _ClusterNode, target: _ClusterNode) -> None:
        """Who takes a slot takes a new epoch. One that had not heard of the newest would take the same as another: the
        two settle that between them, and the slot may be lost to both while only one of them knows that it moved."""
        wait_for(self._epochs_agree)
        target.command("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.id)
        source.command("CLUSTER", "SETSLOT", str(slot), "MIGRATING", target.id)

    def move_keys(self, slot: int, source: _ClusterNode, target: _ClusterNode, count: int = 100) -> int:
        """→ how many were moved."""
        keys = source.command("CLUSTER", "GETKEYSINSLOT", str(slot), str(count))
        assert isinstance(keys, list)
        if keys:
            source.carry(target, *keys)
        return len(keys)

    def move_at_once(self, slot: int, source: _ClusterNode, target: _ClusterNode) -> None:
        """Valkey 9 moves a slot as one; return when it has moved."""
        source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", str(slot), str(slot), "NODE", target.id)
        wait_for(lambda: any(a <= slot <= b and port == target.port for a, b, port in source.slots()))

    def end_migration(self, slot: int, source: _ClusterNode, target: _ClusterNode) -> None:
        others = [node for node in self.primaries if node.running and node not in (source, target)]

        def tell() -> None:
            for node in (target, source, *others):
                node.command("CLUSTER", "SETSLOT", str(slot), "NODE", target.id)

        def agreed() -> bool:
            """What was on its way from the source as it was told may have changed somebody's mind: he is told again."""
            if all(node.owner(slot) == target.port for node in (target, source, *others)) and self._epochs_agree():
                return True
            tell()
            return False

        tell()
        wait_for(agreed)


class _ClusterNode(RedisServer):
    """``known``, ``slots``, ``lines``: how it sees its Cluster."""

    def __init__(
        self, directory: Path, *, binary: str | None, certificates: Certificates | None, options: Sequence[str]
    ) -> None:
        super().__init__(directory, binary=binary)
        self.bus_port, self.tls_port, self.tls = free_port(), free_port(), certificates
        mine = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", str(self.bus_port)]
        mine += ["--cluster-replica-validity-factor", "0"]
        mine += ["--appendonly", "no", "--repl-ping-replica-period", "1", "--repl-diskless-load", "swapdb"]
        if certificates:
            mine += ["--tls-port", str(self.tls_port), "--tls-auth-clients", "no"]
            mine += ["--tls-cluster", "yes", "--tls-replication", "yes"]  # only so does a node tell of its TLS port
            mine += ["--tls-cert-file", str(certificates.cert), "--tls-key-file", str(certificates.key)]
            mine += ["--tls-ca-cert-file", str(certificates.ca)]
        self.options = [*mine, *options]
        self._id = ""

    @property
    def inner_port(self) -> int:
        """For the other nodes."""
        return self.tls_port if self.tls else self.port

    def carry(self, target: _ClusterNode, *keys: bytes) -> None:
        """Move these keys, which are here, to another node."""
        where = ("127.0.0.1", str(target.inner_port), "", "0", "5000", "REPLACE")
        assert self.command("MIGRATE", *where, "KEYS", *keys) == b"OK"

    @property
    def id(self) -> str:
        if not self._id:
            told = self.command("CLUSTER", "MYID")
            assert isinstance(told, bytes)
            self._id = told.decode()
        return self._id

    def lines(self) -> list[bytes]:
        told = self.command("CLUSTER", "NODES")
        assert isinstance(told, bytes)
        return told.splitlines()

    def known(self) -> set[str]:
        """The ids of nodes that it has shaken hands with."""
        return {line.split()[0].decode() for line in self.lines() if b"handshake" not in line}

    def cluster_info(self) -> bytes:
        told = self.command("CLUSTER", "INFO")
        assert isinstance(told, bytes)
        return told

    def shards(self) -> list[list]:
        told = self.command("CLUSTER", "SLOTS")
        assert isinstance(told, list)
        return told

    def epochs(self) -> tuple[int, int]:
        """The newest that it has heard of, and its own."""
        told = dict(line.split(b":") for line in self.cluster_info().split() if b":" in line)
        return int(told[b"cluster_current_epoch"]), int(told[b"cluster_my_epoch"])

    def owner(self, slot: int) -> int | None:
        """The port of who has the slot, as this node sees it."""
        return next((port for first, last, port in self.slots() if first <= slot <= last), None)

    def slots(self) -> list[tuple[int, int, int]]:
        """(first slot, last slot, port of the primary)."""
        return [(first, last, nodes[0][1]) for first, last, *nodes in self.shards()]


class SentinelServers:
    """``nodes[0]`` begins as the master of the name ``main``, ``nodes[1]`` as its replica; three Sentinels watch."""

    name = "main"

    def __init__(
        self, directory: Path, *, certificates: Certificates | None = None, options: Sequence[str] = ()
    ) -> None:
        self.directory, self.certificates = directory, certificates
        quick = ["--appendonly", "no", "--repl-ping-replica-period", "1", *options]
        self.nodes = [
            RedisServer(directory / f"node{n}", certificates=certificates, options=[*quick, *self._replication()])
            for n in range(2)
        ]
        self.sentinels = [_Sentinel(directory / f"sentinel{n}", self) for n in range(3)]

    def _replication(self) -> list[str]:
        return ["--tls-replication", "yes"] if self.certificates else []

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        if self.certificates:
            return f"rediss+sentinel://{hosts}/{self.name}?ssl_ca_certs={self.certificates.ca}"
        return f"redis+sentinel://{hosts}/{self.name}"

    def start(self) -> SentinelServers:
        for node in self.nodes:
            node.start()
        self.nodes[1].replica_of(self.nodes[0])
        for sentinel in self.sentinels:
            sentinel.start()
        self.settle()
        return self

    @property
    def master(self) -> RedisServer:
        port = self.sentinels[0].master_port()
        return next(node for node in self.nodes if node.port == port)

    def settle(self, timeout: float = 40.0) -> None:
        """Return once every Sentinel knows both others and a replica, and that replica has the master's data."""
        wait_for(lambda: all(sentinel.knows_all() for sentinel in self.sentinels), timeout)
        replicas = [node for node in self.nodes if node is not self.master]
        wait_for(lambda: all(b"master_link_status:up" in node.info("replication") for node in replicas), timeout)

    def stop(self) -> None:
        for server in (*self.sentinels, *self.nodes):
            server.kill()


class _Sentinel(RedisServer):
    def __init__(self, directory: Path, watched: SentinelServers) -> None:
        super().__init__(directory, certificates=watched.certificates)
        self._watched = watched

    def start(self, timeout: float = 40.0) -> RedisServer:
        self.directory.mkdir(parents=True, exist_ok=True)
        name, port = self._watched.name, self._watched.nodes[0].port
        lines = [f"sentinel monitor {name} 127.0.0.1 {port} 2"]
        lines += [f"sentinel down-after-milliseconds {name} {_DOWN_AFTER_MS}", f"sentinel failover-timeout {name} 6000"]
        if self.certificates:
            lines += ["tls-replication yes"]
        (self.directory / "sentinel.conf").write_text("\n".join(lines) + "\n")
        return super().start(timeout)

    def _command(self) -> list[str]:
        command = [self.binary, str(self.directory / "sentinel.conf"), "--sentinel", "--bind", "127.0.0.1"]
        command += ["--dir", str(self.directory), "--logfile", "server.log", "--daemonize", "no"]
        return [*command, *self._listening()]

    def state(self) -> dict[bytes, bytes]:
        told = self.command("SENTINEL", "MASTER", self._watched.name)
        assert isinstance(told, list)
        return dict(zip(told[::2], told[1::2], strict=True))

    def master_port(self) -> int:
        return int(self.state()[b"port"])

    def knows_all(self) -> bool:
        state = self.state()
        return (state[b"num-other-sentinels"], state[b"num-slaves"], state[b"flags"]) == (b"2", b"1", b"master")
