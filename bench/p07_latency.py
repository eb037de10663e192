"""P7: from ``publish`` to the first byte at an idle viewer, against a bare XADD that ends an XREAD BLOCK."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time

from bench.lab import TEXT, Lab
from bench.results import Result, Row
from broker.api import Broker
from broker.items import MessageDelta
from broker.publisher import Publisher

__all__ = ["ROW"]


async def run(lab: Lab) -> Result:
    rounds = lab.size(400, 20)
    broker = await lab.broker()
    gateway = lab.gateway
    lab.tell(f"{rounds} rounds")
    ours, bare = [], []
    async with lab.run() as publisher:
        with await _viewer(gateway.port, lab.path(publisher.run_id)) as sock:
            for number in range(rounds):
                await asyncio.sleep(0.003)  # idle: the lane has come back to its blocking read
                ours.append(await _publish(publisher, sock))
                bare.append(await _bare(broker, f"bare-{lab.namespace}", number))
    result = Result()
    middle, theirs = statistics.median(ours), statistics.median(bare)
    result.figures |= {"p50 ms": round(middle * 1e3, 3), "p50 ms, bare": round(theirs * 1e3, 3)}
    result.at_most("p50 / bare XADD + XREAD BLOCK", middle / theirs, 3.0)
    result.check("every item arrived", len(ours) == rounds)
    return result


async def _viewer(port: int, path: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
    seen = b""
    while b"retry:" not in seen:
        seen += await loop.sock_recv(sock, 65536)
    return sock


async def _publish(publisher: Publisher, sock: socket.socket) -> float:
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    await publisher.publish(MessageDelta(text=TEXT))
    while b"event: message.delta" not in await loop.sock_recv(sock, 65536):
        pass  # a heartbeat
    took = time.perf_counter() - began
    await publisher.flush()
    return took


async def _bare(broker: Broker, key: str, number: int) -> float:
    link = await broker.store.link()
    after = b"%d-0" % number
    reading = asyncio.create_task(link.call("XREAD", "BLOCK", 5000, "STREAMS", key, after, deadline=6.0))
    await asyncio.sleep(0.003)
    began = time.perf_counter()
    writing = asyncio.create_task(broker.store.call("XADD", key, b"%d-0" % (number + 1), "d", TEXT))
    await reading
    took = time.perf_counter() - began
    await writing
    await link.aclose()
    return took


ROW = Row("P7", "publish → first byte at an idle viewer", run)
