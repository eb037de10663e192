"""One attempt of a model call: its response turned into items while it arrives.

Until the first token (text, reasoning, a refusal, a call) nothing is published: an attempt that fails before it leaves
no trace and may be made again. From it on every item goes out at once, and a failure is final.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from broker.items import Cache, Event, Item, Message, MessageDelta, RefusalDelta, ToolCallDelta, Usage
from workers.llm.failures import CallFailed, Secrets, of_stream
from workers.llm.settings import LlmSettings
from workers.llm.transport import Reading
from workers.providers.adapter import Adapter
from workers.providers.stream import ProviderStream

__all__ = ["Attempt"]

_HELD_MAX = 1_000
"""So many items without a token are published as well: what is held has a bound."""


class Attempt:
    """``run`` once; the attributes say what came of it, also where it raised."""

    def __init__(
        self,
        adapter: Adapter,
        settings: LlmSettings,
        emit: Callable[[Item], Awaitable[None]],
        *,
        secrets: Secrets,
        deadline: float | None = None,
    ) -> None:
        self.adapter = adapter
        self.model: str | None = None
        """What answered, as the provider names it."""
        self.finish_reason: str | None = None
        self.held: list[Item] = []
        """What was not published: the items of an attempt that ended before its first token."""
        self._settings, self._emit, self._secrets, self._deadline = settings, emit, secrets, deadline
        self._stream = ProviderStream(adapter, limit=settings.line_max_bytes)
        self._started = asyncio.get_running_loop().time()
        self._begun = self._answered = False
        self._bytes = 0

    async def run(self, reading: Reading) -> None:
        """Read to the end, or until ``reading`` is stopped. What the adapter owes at the end is published, or held.

        Raises ``CallFailed``, with ``again`` only before the first token, and what ``emit`` raises.
        """
        fault = await self._read(reading)
        if self._bytes:
            for item in self._stream.close():
                await self._take(item)
        failed = self._judge(fault)
        if failed is None:
            await self._begin()
            return
        if failed is fault:
            payload = {"round": 1, "code": failed.code, "message": failed.message}
            await self._take(Event(name="model.failed", payload=payload))
        failed.again = failed.again and not self._begun
        raise failed

    async def _read(self, reading: Reading) -> CallFailed | None:
        """``None``: the bytes have ended, or the stream says what is wrong with them. Else: what the transport says."""
        limit = self._settings.response_max_bytes
        try:
            while (chunk := await self._next(reading)) is not None:
                self._bytes += len(chunk)
                if self._bytes > limit:
                    raise CallFailed("response_too_big", f"the response is longer than {limit} bytes")
                for item in self._stream.feed(chunk):
                    await self._take(item)
                if self._stream.error is not None:
                    break
        except CallFailed as failed:
            return failed
        return None

    async def _next(self, reading: Reading) -> bytes | None:
        """The waits count alone: what a slow store takes is no silence of the provider's."""
        at, failed = self._limit(asyncio.get_running_loop().time())
        try:
            return await reading.next(at)
        except TimeoutError:
            raise failed from None

    def _limit(self, now: float) -> tuple[float | None, CallFailed]:
        settings = self._settings
        if self._begun:
            at = now + settings.silence if settings.silence else None
            failed = CallFailed("llm_silent", f"not a byte within {settings.silence:g} s", retryable=True)
        else:
            at = self._started + settings.first_token if settings.first_token else None
            failed = CallFailed("llm_timeout", f"no token within {settings.first_token:g} s", retryable=True)
        if self._deadline is not None and (at is None or self._deadline < at):
            message = f"the response did not end within {settings.timeout:g} s"
            return self._deadline, CallFailed("llm_timeout", message, retryable=True)
        return at, failed

    async def _take(self, item: Item) -> None:
        item = self._note(item)
        if self._begun:
            await self._emit(item)
            return
        self.held.append(item)
        if not isinstance(item, (Event, Usage, Cache)) or len(self.held) >= _HELD_MAX:
            await self._begin()

    async def _begin(self) -> None:
        self._begun = True
        held, self.held = self.held, []
        for item in held:
            await self._emit(item)

    def _note(self, item: Item) -> Item:
        if isinstance(item, Event):
            return self._note_event(item)
        if isinstance(item, (MessageDelta, RefusalDelta)):
            self._answered = self._answered or bool(item.text.strip())
        elif isinstance(item, (ToolCallDelta, Message)):
            self._answered = True
        return item

    def _note_event(self, event: Event) -> Event:
        payload = event.payload
        if event.name == "model.started":
            self.model = payload.get("model") or self.model
        elif event.name == "model.completed" and not payload.get("choice"):
            self.finish_reason = payload.get("finish_reason") or self.finish_reason
        elif event.name == "provider.block":
            self._answered = True  # a picture, say
        return msgspec.structs.replace(event, payload=self._secrets.scrub_all(payload))

    def _judge(self, fault: CallFailed | None) -> CallFailed | None:
        """A response that had its end is whole, however the connection ended."""
        error = self._stream.error
        failed: CallFailed | None = None
        if not self._bytes or (fault is not None and error is not None and error.code == "incomplete_stream"):
            failed = fault or CallFailed("incomplete_stream", "the response is empty", retryable=True, again=True)
        elif error is not None:
            failed = of_stream(error)
        if failed is None and not self._answered:
            why = f" (finish reason {self.finish_reason})" if self.finish_reason else ""
            failed = CallFailed("empty_reply", f"the model ended well, but gave no text{why}", retryable=True)
        if failed is not None:
            failed.message = self._secrets.scrub(failed.message)
        return failed
