"""Clients of the WebUI's chats: what a browser does by itself, what the page does, what the Android app does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Protocol

from playwright.async_api import Page

from tests.e2e.processes import http_json
from tests.webui.wire import blocks_of, target

__all__ = ["Android", "Client", "NativeSource", "WebuiPage"]

_NAMES = (
    "token reasoning interim_assistant tool tool_complete approval clarify compressing compressed title warning "
    "metering done stream_end cancel apperror"
)

_COLLECT = """
window.got = []; window.opens = 0; window.text = "";
window.take = (name, e) => {
    window.got.push({event: name, id: e.lastEventId, data: JSON.parse(e.data)});
    if (name === "token") window.text += JSON.parse(e.data).text;
};
window.listen = (source) => {
    source.onopen = () => window.opens++;
    source.onmessage = (e) => window.got.push({event: "message", id: e.lastEventId, data: e.data});
    for (const name of NAMES.split(" ")) source.addEventListener(name, (e) => window.take(name, e));
};
"""

_NATIVE = """(url) => {
    COLLECT
    window.source = new EventSource(url);
    window.listen(window.source);
}"""

_WEBUI = """([streamId, sessionId, first]) => {
    COLLECT
    window.over = false; window.cursor = {seq: 0, raw: ""}; window.recovered = null; window.statuses = [];
    const asJson = async (path) => (await fetch(path)).json();
    const note = (e) => {
        const seq = parseInt(e.lastEventId.slice(e.lastEventId.lastIndexOf(":") + 1), 10);
        if (Number.isFinite(seq) && seq > window.cursor.seq) window.cursor = {seq, raw: e.lastEventId};
    };
    const close = () => { window.over = true; window.source.close(); };
    const recover = async () => {
        const answer = await asJson(`/api/session?session_id=${encodeURIComponent(sessionId)}`);
        window.recovered = answer.session.messages.map((m) => m.content);
    };
    const again = async (pause) => {
        await new Promise((done) => setTimeout(done, pause));
        let known = null;
        try { known = await asJson(`/api/chat/stream/status?stream_id=${streamId}`); } catch (_) {}
        if (known) window.statuses.push(known);
        if (known && !known.active && !known.replay_available) { window.over = true; return recover(); }
        if (!known) return again(Math.min(pause * 2, 2000));
        const {seq, raw} = window.cursor;
        open(`&replay=1&after_seq=${seq}&after_event_id=${encodeURIComponent(raw)}`);
    };
    const open = (query) => {
        const source = window.source = new EventSource(`/api/chat/stream?stream_id=${streamId}${query}`);
        window.listen(source);
        for (const name of NAMES.split(" ")) source.addEventListener(name, note);
        source.addEventListener("stream_end", (e) => {
            const id = JSON.parse(e.data).session_id;
            if (!id || id === sessionId) close();
        });
        source.addEventListener("cancel", close);
        source.addEventListener("apperror", (e) => {
            close();
            if (JSON.parse(e.data).recovery_control) recover();
        });
        source.addEventListener("error", () => { source.close(); if (!window.over) again(100); });
    };
    open(first);
}"""


def _script(text: str) -> str:
    return text.replace("COLLECT", _COLLECT).replace("NAMES", json.dumps(_NAMES))


class Client(Protocol):
    """``first``: what the client adds to its first address, as one that was there before does."""

    async def open(self, run_id: str, session_id: str, first: str = "") -> None: ...
    async def has(self, text: str) -> None: ...
    async def over(self) -> None: ...
    async def events(self) -> list[str]: ...
    async def text(self) -> str: ...
    async def last(self) -> dict[str, Any]: ...
    async def recovered(self) -> list[str] | None: ...


class _InBrowser:
    def __init__(self, page: Page) -> None:
        self.page = page

    async def until(self, script: str, timeout: float = 40.0) -> None:
        await self.page.wait_for_function(script, timeout=timeout * 1000, polling=20)

    async def has(self, text: str) -> None:
        """Wait until that text has been shown."""
        await self.until(f"window.text.includes({json.dumps(text)})")

    async def got(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.page.evaluate("window.got")
        return found

    async def events(self) -> list[str]:
        return [e["event"] for e in await self.got()]

    async def text(self) -> str:
        return str(await self.page.evaluate("window.text"))

    async def last(self) -> dict[str, Any]:
        """The data of the event that closed the stream."""
        found: dict[str, Any] = (await self.got())[-1]["data"]
        return found


class NativeSource(_InBrowser):
    """An EventSource that nobody closes: it comes back by itself, with the header."""

    async def open(self, run_id: str, session_id: str, first: str = "") -> None:
        await self.page.evaluate(_script(_NATIVE), target(run_id) + first)

    async def over(self) -> None:
        await self.until("window.got.some(e => ['stream_end', 'cancel', 'apperror'].includes(e.event))")
        await self.until("window.source.readyState !== 1")

    async def recovered(self) -> list[str] | None:
        return None


class WebuiPage(_InBrowser):
    """Closes at an error, asks the status, and opens again with its cursor; looks at the session to recover."""

    async def open(self, run_id: str, session_id: str, first: str = "") -> None:
        await self.page.evaluate(_script(_WEBUI), [run_id, session_id, first])

    async def over(self) -> None:
        await self.until("window.over")

    async def recovered(self) -> list[str] | None:
        await self.until("window.recovered !== null")
        found: list[str] = await self.page.evaluate("window.recovered")
        return found


class Android:
    """A raw socket, HTTP/1.1. It leaves comments and ids aside, so after a loss it shows the turn from its start."""

    READ_TIMEOUT = 45.0

    def __init__(self, port: int) -> None:
        self.port = port
        self._shown: list[tuple[str, Any]] = []
        self._task: asyncio.Task[None] | None = None
        self._session_id = ""
        self.connections = 0

    async def open(self, run_id: str, session_id: str, first: str = "") -> None:
        self._session_id = session_id
        self._task = asyncio.create_task(self._watch(run_id, first))

    async def _watch(self, run_id: str, first: str) -> None:
        path = target(run_id) + first
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                self._shown = []
                await self._once(path)
            if self._closed:
                return
            await self._ask(run_id)
            path = target(run_id)

    async def _ask(self, run_id: str) -> None:
        """Whether it is worth coming back, until somebody answers."""
        while True:
            await asyncio.sleep(0.1)
            with contextlib.suppress(OSError, IndexError):
                _, status = await http_json(self.port, "GET", f"/api/chat/stream/status?stream_id={run_id}")
                assert status["active"] or status["replay_available"], status
                return

    async def _once(self, path: str) -> None:
        self.connections += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self.READ_TIMEOUT)
            assert head.startswith(b"HTTP/1.1 200 "), head
            rest = b""
            while not self._closed:
                size = int(await asyncio.wait_for(reader.readuntil(b"\r\n"), self.READ_TIMEOUT), 16)
                rest += (await reader.readexactly(size + 2))[:-2]
                if not size:
                    return
                whole, separator, rest = rest.rpartition(b"\n\n")
                self._shown += [(b.event, b.data) for b in blocks_of(whole + separator) if b.event]
        finally:
            writer.transport.abort()

    @property
    def _closed(self) -> bool:
        return any(event in ("stream_end", "cancel", "apperror") for event, _ in self._shown)

    async def has(self, text: str) -> None:
        async with asyncio.timeout(40):
            while text not in await self.text():
                assert self._task is None or not self._task.done() or text in await self.text()
                await asyncio.sleep(0.01)

    async def over(self) -> None:
        assert self._task is not None
        await asyncio.wait_for(self._task, 40)

    async def events(self) -> list[str]:
        return [event for event, _ in self._shown]

    async def text(self) -> str:
        return "".join(data["text"] for event, data in self._shown if event == "token")

    async def last(self) -> dict[str, Any]:
        found: dict[str, Any] = self._shown[-1][1]
        return found

    async def recovered(self) -> list[str] | None:
        _, answer = await http_json(self.port, "GET", f"/api/session?session_id={self._session_id}")
        return [message["content"] for message in answer["session"]["messages"]]

    def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
