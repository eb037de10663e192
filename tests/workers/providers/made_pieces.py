"""Right streams of the APIs whose every event is a piece of the answer by itself: Gemini's and Ollama's."""

from __future__ import annotations

from random import Random

from tests.workers.providers.chance import Data, Made, any_call, any_fragments, fragments_of, joined

__all__ = ["google", "ollama"]


def google(rng: Random) -> Made:
    made = Made("google.generateContent")
    parts: list[Data] = []
    other = rng.random() < 0.2
    for _ in range(rng.randint(1, 5)):
        kind, said = rng.choice(["text", "text", "thought", "call", "code"]), any_fragments(rng)
        signature = {"thoughtSignature": "s"} if rng.random() < 0.2 else {}
        if kind == "call":
            name, value, _ = any_call(rng)
            parts.append({"functionCall": {"name": name, "args": value}, **signature})
            made.calls[0].append((name, value))
        elif kind == "code":
            parts.append({"executableCode": {"language": "PYTHON", "code": "1"}})
        else:
            whole = joined(said)
            cut = fragments_of(whole, rng, halves=False)
            parts += [{"text": t, **({"thought": True} if kind == "thought" else {})} for t in cut]
            parts[-1] |= signature
            made.texts[0] += whole if kind == "text" else ""
    for n, part in enumerate(parts):
        end = {"finishReason": "STOP"} if n + 1 == len(parts) else {}
        candidates: list[Data] = [{"content": {"parts": [part], "role": "model"}, "index": 0, **end}]
        if other:
            made.texts[1] = made.texts.get(1, "") + "b"
            made.calls[1] = []
            candidates.append({"content": {"parts": [{"text": "b"}]}, "index": 1, **end})
        usage = {"promptTokenCount": 3, "candidatesTokenCount": n, "thoughtsTokenCount": n}
        made.events.append({"candidates": candidates, "usageMetadata": usage, "modelVersion": "m", "responseId": "r"})
    return made


def ollama(rng: Random) -> Made:
    made = Made("ollama.chat")
    messages: list[Data] = []
    for _ in range(rng.randint(0, 4)):
        kind, said = rng.choice(["content", "content", "thinking", "call"]), any_fragments(rng)
        if kind == "call":
            name, value, _ = any_call(rng)
            made.calls[0].append((name, value))
            messages.append({"content": "", "tool_calls": [{"function": {"name": name, "arguments": value}}]})
        else:
            cut = fragments_of(joined(said), rng, halves=False)
            messages += [{"content": "", kind: t} for t in cut]
            made.texts[0] += "".join(cut) if kind == "content" else ""
    made.events += [{"model": "m", "message": {"role": "assistant", **m}, "done": False} for m in messages]
    last = {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
    made.events.append({**last, "prompt_eval_count": 3, "eval_count": 4})
    return made
