"""Right streams of the APIs whose chunks have choices: OpenAI's chat completions, and Mistral's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.workers.providers.chance import Data, Made, any_call, any_fragments, any_text, fragments_of, joined, mixed
from workers.providers.decoding import DONE

__all__ = ["chat", "mistral"]


def _choices(rng: Random, parts: Callable[[Random], tuple[list[Data], str, list[tuple[str, Any]]]], api: str) -> Made:
    made = Made(api)
    queues = []
    for number in range(rng.choice([1, 1, 1, 2, 3])):
        deltas, text, calls = parts(rng)
        made.texts[number], made.calls[number] = text, calls
        reason = "tool_calls" if calls else "stop"
        queue: list[Data] = [{"index": number, "delta": delta, "finish_reason": None} for delta in deltas]
        queues.append([*queue, {"index": number, "delta": {}, "finish_reason": reason}])
    counts = rng.choice(["none", "last", "each"])
    head = {"id": "c1", "object": "chat.completion.chunk", "model": "m", "system_fingerprint": "fp"}
    for n, choice in enumerate(mixed(queues, rng)):
        usage = {"usage": {"prompt_tokens": 7, "completion_tokens": n}} if counts == "each" else {}
        made.events.append({**head, "choices": [choice], **usage})
    if counts == "last":
        made.events.append({**head, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}})
    made.events += [DONE] if rng.random() < 0.7 else []
    return made


def chat(rng: Random) -> Made:
    def parts(rng: Random) -> tuple[list[Data], str, list[tuple[str, Any]]]:
        name = rng.choice(["reasoning_content", "reasoning"])
        deltas: list[Data] = [{"role": "assistant", "content": rng.choice(["", None])}]
        deltas += [{name: t, "content": None} for t in any_fragments(rng)] if rng.random() < 0.4 else []
        said = any_fragments(rng) if rng.random() < 0.8 else []
        deltas += [{"content": t} for t in said]
        calls, queues = [], []
        for index in range(rng.choice([0, 0, 1, 2, 3])):
            tool, value, fragments = any_call(rng)
            calls.append((tool, value))
            first = {"index": index, "id": f"call_{index}", "type": "function"}
            told: list[Data] = [{**first, "function": {"name": tool, "arguments": ""}}]
            queues.append(told + [{"index": index, "function": {"arguments": f}} for f in fragments])
        # Heads in their order, which is that of the blocks; what follows comes as it comes.
        deltas += [{"tool_calls": [queue.pop(0)]} for queue in queues]
        deltas += [{"tool_calls": [entry]} for entry in mixed(queues, rng)]
        deltas += [{"annotations": [{"type": "url_citation", "url": "u"}]}] if said and rng.random() < 0.2 else []
        deltas += [{"refusal": t} for t in any_fragments(rng)] if rng.random() < 0.1 else []
        return deltas, joined(said), calls

    return _choices(rng, parts, "openai.chat")


def mistral(rng: Random) -> Made:
    def parts(rng: Random) -> tuple[list[Data], str, list[tuple[str, Any]]]:
        deltas: list[Data] = []
        text = ""
        for _ in range(rng.randint(0, 3)):
            said = fragments_of(any_text(rng), rng, halves=False)
            kind = rng.choice(["string", "text", "thinking", "reference"])
            text += "" if kind in ("thinking", "reference") else "".join(said)
            if kind == "string":
                deltas += [{"content": t} for t in said]
            elif kind == "text":
                deltas.append({"content": [{"type": "text", "text": t} for t in said]})
            elif kind == "thinking":
                deltas.append({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": said[0]}]}]})
            else:
                deltas.append({"content": [{"type": "reference", "reference_ids": [1]}]})
        told = [any_call(rng) for _ in range(rng.choice([0, 0, 1, 2]))]
        calls = [
            {"index": n, "id": f"id{n}", "function": {"name": name, "arguments": "".join(fragments)}}
            for n, (name, _, fragments) in enumerate(told)
        ]
        deltas += [{"content": "", "tool_calls": calls}] if calls else []
        return deltas, text, [(name, value) for name, value, _ in told]

    return _choices(rng, parts, "mistral.chat")
