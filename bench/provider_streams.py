"""Streams as the providers send them, made here: long, and with nothing left out that each chunk carries in truth.

A stream is cut into one piece an event, which is how tokens arrive. No recording is needed and none is copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Stream", "streams"]

_TEXT = "the quick brown fox, jumps over 12 lazy dogs; “naïve” café 東京 isn't far. So"
_WORDS = _TEXT.split()
_CALL_PIECES = 25
Chunk = dict[str, Any]


@dataclass(frozen=True)
class Stream:
    """``pieces``: the bytes, one piece an event. The rest is what a right merge of them has."""

    name: str
    api: str
    pieces: list[bytes]
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Name and arguments."""


def streams(chunks: int) -> list[Stream]:
    """All of them, each with about so many chunks; those of many calls with a fifth, which is still scores of calls."""
    long: list[Callable[[int], Stream]] = [
        *(_chat_text, _chat_reasoning, _anthropic_text, _anthropic_thinking),
        *(_responses_text, _google_text, _ollama_text),
    ]
    calls: list[Callable[[int], Stream]] = [_chat_calls, _anthropic_calls, _responses_calls]
    return [*(make(chunks) for make in long), *(make(chunks // 5) for make in calls)]


def _tokens(count: int) -> list[str]:
    return [" " + _WORDS[n * 7 % len(_WORDS)] for n in range(count)]


def _calls(chunks: int) -> list[tuple[str, list[str]]]:
    """Calls, each with the fragments of its arguments."""
    made = []
    for n in range(max(chunks // _CALL_PIECES, 1)):
        text = json.dumps({"path": f"/src/module_{n}.py", "content": " ".join(_WORDS) * 3, "line": n})
        size = len(text) // _CALL_PIECES + 1
        made.append((f"tool_{n % 3}", [text[i : i + size] for i in range(0, len(text), size)]))
    return made


def _as_calls(calls: list[tuple[str, list[str]]]) -> list[tuple[str, Any]]:
    return [(name, json.loads("".join(fragments))) for name, fragments in calls]


def _sse(events: Iterable[Chunk], *, named: bool, done: bool = False) -> list[bytes]:
    pieces = []
    for event in events:
        head = f"event: {event['type']}\n" if named else ""
        data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        pieces.append(f"{head}data: {data}\n\n".encode())
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


# OpenAI's chat completions.


def _chat(deltas: Iterable[Chunk], reason: str) -> list[bytes]:
    head = {
        "id": "chatcmpl-B9QkLp7vXw2mTz4rYs6nDc8fHj1a",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "gpt-5-2025-08-07",
        "service_tier": "default",
        "system_fingerprint": "fp_0a1b2c3d4e",
    }

    def chunk(delta: Chunk, finish_reason: str | None = None) -> Chunk:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**head, "choices": [choice], "usage": None, "obfuscation": "kJ3x9"}

    usage = {
        "prompt_tokens": 1_200,
        "completion_tokens": 10_000,
        "total_tokens": 11_200,
        "prompt_tokens_details": {"cached_tokens": 1_024, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 256, "audio_tokens": 0},
    }
    first = chunk({"role": "assistant", "content": "", "refusal": None})
    chunks = [first, *map(chunk, deltas), chunk({}, reason), {**head, "choices": [], "usage": usage}]
    return _sse(chunks, named=False, done=True)


def _chat_text(chunks: int) -> Stream:
    tokens = _tokens(chunks)
    return Stream("chat, text", "openai.chat", _chat(({"content": t} for t in tokens), "stop"), "".join(tokens))


def _chat_reasoning(chunks: int) -> Stream:
    """As DeepSeek and those after it send it: a field of its own, in front of the answer."""
    thoughts, tokens = _tokens(chunks * 3 // 4), _tokens(chunks // 4)
    deltas = [
        *({"content": None, "reasoning_content": t} for t in thoughts),
        *({"content": t, "reasoning_content": None} for t in tokens),
    ]
    return Stream("chat, reasoning", "openai.chat", _chat(deltas, "stop"), "".join(tokens), "".join(thoughts))


def _chat_calls(chunks: int) -> Stream:
    calls = _calls(chunks)

    def deltas() -> Iterator[Chunk]:
        for index, (name, fragments) in enumerate(calls):
            function = {"name": name, "arguments": ""}
            head = {"index": index, "id": f"call_{index:024}", "type": "function", "function": function}
            yield {"tool_calls": [head]}
            for fragment in fragments:
                yield {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}

    return Stream("chat, calls", "openai.chat", _chat(deltas(), "tool_calls"), calls=_as_calls(calls))


# Anthropic's messages.


def _anthropic(blocks: Iterable[tuple[Chunk, Iterable[Chunk]]], reason: str) -> list[bytes]:
    message: Chunk = {
        "id": "msg_01AbCdEfGhIjKlMnOpQrStUv",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 176, "cache_read_input_tokens": 1_024, "output_tokens": 1},
    }

    def events() -> Iterator[Chunk]:
        yield {"type": "message_start", "message": message}
        for index, (block, deltas) in enumerate(blocks):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        stop = {"stop_reason": reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 10_000}}
        yield {"type": "message_stop"}

    return _sse(events(), named=True)


def _text_block(tokens: list[str]) -> tuple[Chunk, Iterable[Chunk]]:
    return {"type": "text", "text": ""}, ({"type": "text_delta", "text": t} for t in tokens)


def _anthropic_text(chunks: int) -> Stream:
    tokens = _tokens(chunks)
    pieces = _anthropic([_text_block(tokens)], "end_turn")
    return Stream("messages, text", "anthropic.messages", pieces, "".join(tokens))


def _anthropic_thinking(chunks: int) -> Stream:
    thoughts, tokens = _tokens(chunks * 3 // 4), _tokens(chunks // 4)
    deltas = [
        *({"type": "thinking_delta", "thinking": t} for t in thoughts),
        {"type": "signature_delta", "signature": "EqQBCkYIBRgCKkA" * 20},
    ]
    thinking: Chunk = {"type": "thinking", "thinking": "", "signature": ""}
    pieces = _anthropic([(thinking, deltas), _text_block(tokens)], "end_turn")
    return Stream("messages, thinking", "anthropic.messages", pieces, "".join(tokens), "".join(thoughts))


def _anthropic_calls(chunks: int) -> Stream:
    calls = _calls(chunks)
    blocks = [
        (
            {"type": "tool_use", "id": f"toolu_{n:022}", "name": name, "input": {}},
            [{"type": "input_json_delta", "partial_json": f} for f in fragments],
        )
        for n, (name, fragments) in enumerate(calls)
    ]
    pieces = _anthropic(blocks, "tool_use")
    return Stream("messages, calls", "anthropic.messages", pieces, calls=_as_calls(calls))


# OpenAI's Responses.


def _responses(output: list[tuple[Chunk, list[Chunk], Chunk]]) -> list[bytes]:
    """``output``: each item as it begins, its events, and the item as it ends."""
    head = {
        "id": "resp_0123456789abcdef",
        "object": "response",
        "created_at": 1_760_000_000,
        "status": "in_progress",
        "model": "gpt-5-2025-08-07",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [],
        "usage": None,
    }
    usage = {
        "input_tokens": 1_200,
        "input_tokens_details": {"cached_tokens": 1_024},
        "output_tokens": 10_000,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 11_200,
    }

    def events() -> Iterator[Chunk]:
        yield {"type": "response.created", "response": head}
        yield {"type": "response.in_progress", "response": head}
        for index, (begun, told, ended) in enumerate(output):
            yield {"type": "response.output_item.added", "output_index": index, "item": begun}
            for event in told:
                yield {**event, "output_index": index, "item_id": begun["id"]}
            yield {"type": "response.output_item.done", "output_index": index, "item": ended}
        whole = {**head, "status": "completed", "output": [ended for _, _, ended in output], "usage": usage}
        yield {"type": "response.completed", "response": whole}

    return _sse(({"sequence_number": n, **event} for n, event in enumerate(events())), named=True)


def _responses_text(chunks: int) -> Stream:
    tokens = _tokens(chunks)
    part: Chunk = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    whole: Chunk = {**part, "text": "".join(tokens)}
    at = {"content_index": 0}
    told: list[Chunk] = [
        {"type": "response.content_part.added", **at, "part": part},
        *(
            {"type": "response.output_text.delta", **at, "delta": t, "logprobs": [], "obfuscation": "kJ3x9"}
            for t in tokens
        ),
        {"type": "response.output_text.done", **at, "text": whole["text"], "logprobs": []},
        {"type": "response.content_part.done", **at, "part": whole},
    ]
    item: Chunk = {"id": "msg_01", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    pieces = _responses([(item, told, {**item, "status": "completed", "content": [whole]})])
    return Stream("responses, text", "openai.responses", pieces, whole["text"])


def _responses_calls(chunks: int) -> Stream:
    calls = _calls(chunks)
    output = []
    for n, (name, fragments) in enumerate(calls):
        arguments = "".join(fragments)
        kind = "response.function_call_arguments"
        told: list[Chunk] = [{"type": f"{kind}.delta", "delta": f, "obfuscation": "kJ3x9"} for f in fragments]
        told.append({"type": f"{kind}.done", "name": name, "arguments": arguments})
        item = {"id": f"fc_{n:024}", "type": "function_call", "call_id": f"call_{n:024}", "name": name}
        begun = {**item, "status": "in_progress", "arguments": ""}
        output.append((begun, told, {**item, "status": "completed", "arguments": arguments}))
    return Stream("responses, calls", "openai.responses", _responses(output), calls=_as_calls(calls))


# Those whose own SDKs hand the chunks on as they are.


def _google_text(chunks: int) -> Stream:
    """Usage stands in each chunk."""
    tokens = _tokens(chunks)

    def events() -> Iterator[Chunk]:
        for n, token in enumerate(tokens):
            content = {"parts": [{"text": token}], "role": "model"}
            end = {"finishReason": "STOP"} if n + 1 == len(tokens) else {}
            usage = {"promptTokenCount": 1_200, "candidatesTokenCount": n + 1, "totalTokenCount": 1_201 + n}
            yield {
                "candidates": [{"content": content, **end, "index": 0}],
                "usageMetadata": usage,
                "modelVersion": "gemini-2.5-flash",
                "responseId": "aBcDeFgHiJkLmNo",
            }

    return Stream("generateContent, text", "google.generateContent", _sse(events(), named=False), "".join(tokens))


def _ollama_text(chunks: int) -> Stream:
    tokens = _tokens(chunks)
    head = {"model": "llama3.2", "created_at": "2026-01-01T00:00:00.000000Z"}
    lines = [{**head, "message": {"role": "assistant", "content": t}, "done": False} for t in tokens]
    last = {**head, "message": {"role": "assistant", "content": ""}, "done_reason": "stop", "done": True}
    lines.append({**last, "prompt_eval_count": 26, "eval_count": chunks})
    pieces = [json.dumps(line).encode() + b"\n" for line in lines]
    return Stream("ollama, text", "ollama.chat", pieces, "".join(tokens))
