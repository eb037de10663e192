"""A recorded provider stream → its merged message as one object: what ``runcast merge`` prints. Pure."""

from __future__ import annotations

from typing import Any

from broker.draft import text_of
from broker.items import Event, Item
from broker.merge import COUNTS, Merger
from workers.providers import make_adapter
from workers.providers.adapter import ProviderError
from workers.providers.decoding import LIMIT
from workers.providers.reading import dump
from workers.providers.stream import ProviderStream

__all__ = ["MergedStream"]


class MergedStream:
    """``feed`` the bytes of one response, ``close``, and ask for ``result``. ``feed`` and ``close`` give the items.

    ``snapshots``: the provider sends each text whole, and longer, every time. Raises ``UnknownApi`` where no adapter
    has that name, or none that reads snapshots, and nothing else.
    """

    def __init__(self, api: str, *, snapshots: bool = False, limit: int = LIMIT) -> None:
        self._stream = ProviderStream(make_adapter(api, 1, snapshots=snapshots), 1, limit)
        self.merger = Merger()
        self._heads: dict[str, Any] = {"id": None, "model": None}
        self._finished: dict[int, str | None] = {}

    @property
    def error(self) -> ProviderError | None:
        return self._stream.error

    def feed(self, chunk: bytes) -> list[Item]:
        return self._fold(self._stream.feed(chunk))

    def close(self) -> list[Item]:
        return self._fold(self._stream.close())

    def result(self) -> dict[str, Any]:
        """``{id, model, choices, usage, error}``, with the field names of docs/merging.md."""
        choices = sorted({0, *self.merger.choices(1), *self._finished})
        error = self.error
        return {
            **self._heads,
            "choices": [self._choice(number) for number in choices],
            "usage": self.merger.usage or dict.fromkeys(COUNTS),
            "error": {"code": error.code, "message": error.message} if error is not None else None,
        }

    def _fold(self, items: list[Item]) -> list[Item]:
        for item in items:
            self.merger.add(item)
            if isinstance(item, Event):
                self._note(item.name, item.payload)
        return items

    def _note(self, name: str, payload: dict[str, Any]) -> None:
        if name in ("model.started", "model.completed"):
            self._heads["id"] = self._heads["id"] or payload.get("response_id")
            self._heads["model"] = payload.get("model") or self._heads["model"]
        if name == "model.completed":
            choice = payload.get("choice", 0)
            self._finished[choice] = self._finished.get(choice) or payload.get("finish_reason")

    def _choice(self, number: int) -> dict[str, Any]:
        message = self.merger.message(1, number, raw=True) or {"content": []}
        blocks = message["content"]
        return {
            "index": number,
            "text": text_of(message),
            "reasoning": "".join(b.get("text", "") for b in blocks if b.get("type") == "reasoning"),
            "refusal": "".join(b.get("text", "") for b in blocks if b.get("type") == "refusal") or None,
            "tool_calls": [_call(b) for b in blocks if b.get("type") == "tool_call"],
            "finish_reason": message.get("finish_reason") or self._finished.get(number),
        }


def _call(block: dict[str, Any]) -> dict[str, Any]:
    error = {"error": block["error"]} if "error" in block else {}
    head = {"id": block.get("id"), "name": block.get("name")}
    if block.get("kind") == "custom":  # free text: neither JSON nor invalid
        text = {"arguments_raw": block.get("input", ""), "arguments_json": None, "arguments_valid": None}
        return {**head, **text, "custom_text_input": True, **error}
    value, raw = block.get("arguments"), block.get("raw")
    return {
        **head,
        "arguments_raw": raw if raw and raw.strip() else dump(value),
        "arguments_json": value,
        "arguments_valid": not error,
        **error,
    }
