"""A call over the API server of the tests: what it gave, and what is said back."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from broker.items import Event, Item, MessageDelta
from tests.workers.fake_api import KEY, FakeApi, Until
from workers.hermes.api_call import ApiCall
from workers.hermes.api_server import ApiServer
from workers.hermes.calls import Ask
from workers.hermes.command import Call
from workers.hermes.settings import HermesSettings

__all__ = ["STOPPED", "USAGE", "Talk", "answered", "approval", "completed"]

USAGE = {"input_tokens": 100, "output_tokens": 20}


class Talk:
    """A call, what it gave, and what is said back."""

    def __init__(self, api: FakeApi, *, key: str = KEY, url: str = "", **settings: Any) -> None:
        made = HermesSettings(api_url=url or api.url, api_key=SecretStr(key))
        self.settings = made.model_copy(update={"grace": 2.0, **settings})
        self.server = ApiServer(self.settings)
        self.items: list[Item] = []
        self.asks: list[Ask] = []

    async def start(self, prompt: str = "hello", **options: Any) -> Talk:
        self.call = await ApiCall.start(self.server, self.settings, Call(prompt, **options))
        return self

    async def until(self, reached: Any) -> Talk:
        while not reached(self):
            batch = await self.call.read()
            assert batch is not None, self.items
            self._keep(batch)
        return self

    async def rest(self) -> Talk:
        while (batch := await self.call.read()) is not None:
            self._keep(batch)
        return self

    def _keep(self, batch: list[Any]) -> None:
        self.asks += [made for made in batch if isinstance(made, Ask)]
        self.items += [made for made in batch if not isinstance(made, Ask)]

    async def close(self, patience: float = 0.0) -> None:
        await self.call.aclose(patience=patience)
        await self.server.aclose()

    async def whole(self, prompt: str = "hello", **options: Any) -> Talk:
        await self.start(prompt, **options)
        try:
            return await self.rest()
        finally:
            await self.close()

    def of(self, type_: type[Any]) -> list[Any]:
        return [item for item in self.items if isinstance(item, type_)]

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.of(MessageDelta))

    @property
    def events(self) -> list[tuple[str, Any]]:
        return [(item.name, item.payload.get("code")) for item in self.of(Event)]


def completed(output: str, **more: Any) -> dict[str, Any]:
    return {"event": "run.completed", "output": output, "usage": USAGE, **more}


def approval(command: str, request_id: str = "") -> dict[str, Any]:
    named = {"request_id": request_id} if request_id else {}
    choices = ["once", "session", "always", "deny"]
    return {"event": "approval.request", "command": command, "description": "deletes", "choices": choices, **named}


def answered(times: int) -> Until:
    return Until(lambda run: len(run.posted("approval")) >= times)


STOPPED = Until(lambda run: bool(run.posted("stop")))
