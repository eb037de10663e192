"""What each API sends for the same answer, made here: ``pieces(api, words)`` → the body, an event each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["APIS", "MODEL", "USAGE", "pieces", "sse"]

MODEL = "gpt-4o"
USAGE = {"input_tokens": 1000, "output_tokens": 100, "cache_read_tokens": 400}
"""In our meaning: what every stream here reports, however its API writes it."""


def sse(data: Any, event: str = "") -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"event: {event}\ndata: {text}\n\n".encode() if event else f"data: {text}\n\n".encode()


def _typed(*events: dict[str, Any]) -> list[bytes]:
    return [sse(event, event["type"]) for event in events]


def _openai_chat(words: Sequence[str], model: str) -> list[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({"id": "c1", "object": "chat.completion.chunk", "model": model, "choices": [choice]})

    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 400},
    }
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": word}) for word in words),
        chunk({}, "stop"),
        sse({"id": "c1", "object": "chat.completion.chunk", "model": model, "choices": [], "usage": usage}),
        sse("[DONE]"),
    ]


def _openai_responses(words: Sequence[str], model: str) -> list[bytes]:
    head = {"id": "r1", "object": "response", "model": model}
    at = {"item_id": "m1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "".join(words), "annotations": []}
    message = {"id": "m1", "type": "message", "role": "assistant", "content": [part], "status": "completed"}
    usage = {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 400},
        "output_tokens": 100,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1100,
    }
    return _typed(
        {"type": "response.created", "response": {**head, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**message, "content": []}},
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **at, "delta": word} for word in words),
        {"type": "response.output_text.done", **at, "text": "".join(words)},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {
            "type": "response.completed",
            "response": {**head, "status": "completed", "output": [message], "usage": usage},
        },
    )


def _anthropic(words: Sequence[str], model: str) -> list[bytes]:
    usage = {"input_tokens": 600, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 0, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage}
    deltas = (
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in words
    )
    return _typed(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 100}},
        {"type": "message_stop"},
    )


def _google(words: Sequence[str], model: str) -> list[bytes]:
    def chunk(text: str, **more: Any) -> bytes:
        candidate = {"index": 0, "content": {"role": "model", "parts": [{"text": text}]}, **more}
        usage = {
            "promptTokenCount": 1000,
            "cachedContentTokenCount": 400,
            "candidatesTokenCount": 100,
            "totalTokenCount": 1100,
        }
        return sse({"candidates": [candidate], "modelVersion": model, "responseId": "g1", "usageMetadata": usage})

    return [*(chunk(word) for word in words[:-1]), chunk(words[-1], finishReason="STOP")]


def _ollama(words: Sequence[str], model: str) -> list[bytes]:
    def line(text: str, **more: Any) -> bytes:
        return json.dumps({"model": model, "message": {"role": "assistant", "content": text}, **more}).encode() + b"\n"

    end = {"done_reason": "stop", "done": True, "prompt_eval_count": 1000, "eval_count": 100}
    return [*(line(word, done=False) for word in words), line("", **end)]


def _cohere(words: Sequence[str], model: str) -> list[bytes]:
    deltas = (
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": word}}}} for word in words
    )
    usage = {
        "billed_units": {"input_tokens": 1000, "output_tokens": 100},
        "tokens": {"input_tokens": 1000, "output_tokens": 100},
    }
    return _typed(
        {"type": "message-start", "id": "co1", "delta": {"message": {"role": "assistant", "content": []}}},
        {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}},
        *deltas,
        {"type": "content-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": usage}},
    )


APIS: dict[str, Callable[[Sequence[str], str], list[bytes]]] = {
    "anthropic.messages": _anthropic,
    "cohere.chat": _cohere,
    "google.generateContent": _google,
    "mistral.chat": _openai_chat,
    "ollama.chat": _ollama,
    "openai.chat": _openai_chat,
    "openai.responses": _openai_responses,
}


def pieces(api: str, words: Sequence[str], model: str = MODEL) -> list[bytes]:
    return APIS[api](words, model)
