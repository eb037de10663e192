"""Right streams of the APIs that send one message in blocks: Anthropic's, Bedrock's and Cohere's."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.workers.providers.chance import Data, Made, any_call, any_fragments, joined

__all__ = ["anthropic", "bedrock", "cohere"]


def anthropic(rng: Random) -> Made:
    usage = {"input_tokens": 3, "cache_read_input_tokens": rng.choice([0, 2, None]), "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    made = Made("anthropic.messages", [{"type": "message_start", "message": message}])
    for index in range(rng.randint(0, 4)):
        kind = rng.choice(["text", "text", "thinking", "redacted", "tool", "server"])
        said = any_fragments(rng)
        deltas: list[Data] = []
        block: Data = {"type": "text", "text": ""}
        if kind == "text":
            deltas = [{"type": "text_delta", "text": t} for t in said]
            deltas += [{"type": "citations_delta", "citation": {"cited_text": "c"}}] if rng.random() < 0.2 else []
            made.texts[0] += joined(said)
        elif kind == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": t} for t in said]
            deltas.append({"type": "signature_delta", "signature": "s" * 20})
        elif kind == "redacted":
            block = {"type": "redacted_thinking", "data": "blob"}
        else:
            name, value, fragments = any_call(rng)
            type_ = "tool_use" if kind == "tool" else "server_tool_use"
            block = {"type": type_, "id": f"toolu_{index}", "name": name, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": f} for f in fragments]
            made.calls[0] += [(name, value)] if kind == "tool" else []
        made.events.append({"type": "content_block_start", "index": index, "content_block": block})
        made.events += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        made.events.append({"type": "content_block_stop", "index": index})
        made.events += [{"type": "ping"}] if rng.random() < 0.2 else []
    reason = {"stop_reason": "tool_use" if made.calls[0] else "end_turn", "stop_sequence": None}
    made.events.append({"type": "message_delta", "delta": reason, "usage": {"output_tokens": 9}})
    made.events.append({"type": "message_stop"})
    return made


def bedrock(rng: Random) -> Made:
    made = Made("bedrock.converse", [{"messageStart": {"role": "assistant"}}])
    for index in range(rng.randint(0, 4)):
        at, said = {"contentBlockIndex": index}, any_fragments(rng)
        kind = rng.choice(["text", "text", "reasoning", "tool"])
        deltas: list[Data] = []
        if kind == "text":
            deltas = [{"text": t} for t in said]
            made.texts[0] += joined(said)
        elif kind == "reasoning":
            deltas = [*({"reasoningContent": {"text": t}} for t in said), {"reasoningContent": {"signature": "s"}}]
        else:
            name, value, fragments = any_call(rng)
            made.calls[0].append((name, value))
            start = {"toolUse": {"toolUseId": f"t{index}", "name": name}}
            made.events.append({"contentBlockStart": {**at, "start": start}})
            deltas = [{"toolUse": {"input": f}} for f in fragments]
        made.events += [{"contentBlockDelta": {**at, "delta": delta}} for delta in deltas]
        made.events.append({"contentBlockStop": at})
    made.events.append({"messageStop": {"stopReason": "tool_use" if made.calls[0] else "end_turn"}})
    usage = {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8, "cacheReadInputTokens": 1}
    made.events.append({"metadata": {"usage": usage, "metrics": {"latencyMs": 5}}})
    return made


def cohere(rng: Random) -> Made:
    made = Made("cohere.chat", [{"type": "message-start", "id": "1"}])

    def tell(type_: str, index: int, **message: Any) -> None:
        made.events.append({"type": type_, "index": index, "delta": {"message": message}})

    if rng.random() < 0.3:
        made.events += [{"type": "tool-plan-delta", "delta": {"message": {"tool_plan": t}}} for t in ("I ", "plan")]
    for index in range(rng.randint(0, 3)):
        kind, said = rng.choice(["text", "text", "thinking"]), any_fragments(rng)
        tell("content-start", index, content={"type": kind, kind: ""})
        for t in said:
            tell("content-delta", index, content={kind: t})
        if kind == "text" and rng.random() < 0.2:
            tell("citation-start", 0, citations={"start": 0, "end": 1, "text": "c", "content_index": index})
        made.events.append({"type": "content-end", "index": index})
        made.texts[0] += joined(said) if kind == "text" else ""
    for index in range(rng.choice([0, 0, 1, 2])):
        name, value, fragments = any_call(rng)
        made.calls[0].append((name, value))
        function = {"name": name, "arguments": ""}
        tell("tool-call-start", index, tool_calls={"id": f"t{index}", "type": "function", "function": function})
        for f in fragments:
            tell("tool-call-delta", index, tool_calls={"function": {"arguments": f}})
        made.events.append({"type": "tool-call-end", "index": index})
    usage = {"tokens": {"input_tokens": 3, "output_tokens": 4}, "billed_units": {"input_tokens": 1}}
    reason = "TOOL_CALL" if made.calls[0] else "COMPLETE"
    made.events.append({"type": "message-end", "delta": {"finish_reason": reason, "usage": usage}})
    return made
