"""Token counts of the chat completions API, and of those who copy it, in our meaning. Pure."""

from __future__ import annotations

from typing import Any

from workers.providers.reading import as_count, as_dict, as_list

__all__ = ["counts_of", "usage_of"]


def usage_of(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """A chunk's usage, wherever it stands: Moonshot puts it into the choice, Groq into a field of its own as well."""
    usage = chunk.get("usage")
    if usage and isinstance(usage, dict):
        return usage
    for place in (*as_list(chunk.get("choices")), chunk.get("x_groq")):
        usage = place.get("usage") if isinstance(place, dict) else None
        if usage and isinstance(usage, dict):
            return usage
    return None


def counts_of(usage: dict[str, Any]) -> dict[str, int | None]:
    """``prompt_tokens`` has the cached ones in it, and ``completion_tokens`` the reasoning, save with xAI."""
    prompt, completion = as_dict(usage.get("prompt_tokens_details")), as_dict(usage.get("completion_tokens_details"))
    read = _first(prompt.get("cached_tokens"), usage.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"))
    reasoning = _first(completion.get("reasoning_tokens"), usage.get("reasoning_tokens"))
    spent, said = as_count(usage.get("prompt_tokens")), as_count(usage.get("completion_tokens"))
    total = as_count(usage.get("total_tokens"))
    if reasoning and spent is not None and said is not None and total == spent + said + reasoning:
        said += reasoning  # only the total tells that the reasoning was counted beside the rest
    return {
        "input_tokens": spent,
        "output_tokens": said,
        "cache_read_tokens": read,
        "cache_write_tokens": _first(prompt.get("cache_write_tokens"), prompt.get("cache_creation_tokens")),
        "reasoning_tokens": reasoning,
    }


def _first(*values: Any) -> int | None:
    return next((count for v in values if (count := as_count(v)) is not None), None)
