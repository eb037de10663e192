"""One file per provider's API, and the way to find it by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from workers.providers.adapter import Adapter

__all__ = ["ADAPTERS", "UnknownApi", "get_adapter", "make_adapter"]

ADAPTERS: dict[str, str] = {
    "anthropic.messages": "workers.providers.anthropic:AnthropicMessages",
    "bedrock.converse": "workers.providers.bedrock:BedrockConverse",
    "cohere.chat": "workers.providers.cohere:CohereChat",
    "google.generateContent": "workers.providers.google:GoogleGenerateContent",
    "mistral.chat": "workers.providers.mistral:MistralChat",
    "ollama.chat": "workers.providers.ollama:OllamaChat",
    "openai.chat": "workers.providers.openai_chat:OpenAIChat",
    "openai.responses": "workers.providers.openai_responses:OpenAIResponses",
}
"""API name → where its adapter is. Loaded when it is asked for."""


class UnknownApi(ValueError):
    """No adapter has that name; the message lists the names there are."""


def get_adapter(api: str) -> type[Adapter]:
    """The adapter's class. Raises ``UnknownApi``."""
    if api not in ADAPTERS:
        raise UnknownApi(f"unknown API {api[:64]!r}: known are {', '.join(sorted(ADAPTERS))}")
    module, _, name = ADAPTERS[api].partition(":")
    return cast("type[Adapter]", getattr(import_module(module), name))


def make_adapter(api: str, round: int = 1, *, snapshots: bool = False) -> Adapter:
    """An adapter for one response. Raises ``UnknownApi``, also where it cannot read growing ``snapshots``."""
    adapter = get_adapter(api)
    if not snapshots:
        return adapter(round)
    if not getattr(adapter, "takes_snapshots", False):
        raise UnknownApi(f"{api} sends no growing snapshots: it cannot be read that way")
    return cast("Adapter", cast(Any, adapter)(round, snapshots=True))
