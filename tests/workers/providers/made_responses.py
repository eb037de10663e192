"""Right streams of OpenAI's Responses API: each text in fragments, and whole three times after them."""

from __future__ import annotations

from random import Random

from tests.workers.providers.chance import Data, Made, any_call, any_text, fragments_of

__all__ = ["responses"]


def responses(rng: Random) -> Made:
    made = Made("openai.responses")
    head: Data = {"id": "resp_1", "object": "response", "status": "in_progress", "model": "m", "output": []}
    output: list[Data] = []
    made.events.append({"type": "response.created", "response": head})
    for index in range(rng.randint(0, 4)):
        make_item = rng.choice([_message_item, _message_item, _reasoning_item, _call_item, _search_item])
        output.append(make_item(rng, made, index))
    usage = {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 2}}
    whole = {**head, "status": "completed", "output": output, "usage": usage}
    made.events.append({"type": "response.completed", "response": whole})
    if rng.random() < 0.7:
        made.events = [{**event, "sequence_number": n} for n, event in enumerate(made.events)]
    return made


def _item(made: Made, index: int, begun: Data, told: list[Data], ended: Data) -> Data:
    at = {"output_index": index}
    made.events.append({"type": "response.output_item.added", **at, "item": begun})
    made.events += [{**event, **at, "item_id": begun["id"]} for event in told]
    made.events.append({"type": "response.output_item.done", **at, "item": ended})
    return ended


def _message_item(rng: Random, made: Made, index: int) -> Data:
    begun: Data = {"id": f"msg_{index}", "type": "message", "role": "assistant", "content": []}
    told: list[Data] = []
    content: list[Data] = []
    for n in range(rng.randint(1, 2)):
        said = fragments_of(any_text(rng), rng, halves=False)
        at = {"content_index": n}
        part: Data = {"type": "output_text", "text": "".join(said), "annotations": []}
        told.append({"type": "response.content_part.added", **at, "part": {**part, "text": ""}})
        told += [{"type": "response.output_text.delta", **at, "delta": t} for t in said]
        told.append({"type": "response.output_text.done", **at, "text": part["text"]})
        told.append({"type": "response.content_part.done", **at, "part": part})
        content.append(part)
        made.texts[0] += part["text"]
    return _item(made, index, begun, told, {**begun, "content": content})


def _reasoning_item(rng: Random, made: Made, index: int) -> Data:
    said = fragments_of(any_text(rng), rng, halves=False)
    begun: Data = {"id": f"rs_{index}", "type": "reasoning", "summary": []}
    part = {"type": "summary_text", "text": "".join(said)}
    at = {"summary_index": 0}
    told: list[Data] = [{"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}]
    told += [{"type": "response.reasoning_summary_text.delta", **at, "delta": t} for t in said]
    told.append({"type": "response.reasoning_summary_text.done", **at, "text": part["text"]})
    return _item(made, index, begun, told, {**begun, "summary": [part], "encrypted_content": "blob"})


def _call_item(rng: Random, made: Made, index: int) -> Data:
    name, value, fragments = any_call(rng)
    made.calls[0].append((name, value))
    item: Data = {"id": f"fc_{index}", "type": "function_call", "call_id": f"call_{index}", "name": name}
    whole = "".join(fragments)
    told: list[Data] = [{"type": "response.function_call_arguments.delta", "delta": f} for f in fragments]
    told.append({"type": "response.function_call_arguments.done", "arguments": whole})
    return _item(made, index, {**item, "arguments": ""}, told, {**item, "arguments": whole})


def _search_item(rng: Random, made: Made, index: int) -> Data:
    item: Data = {"id": f"ws_{index}", "type": "web_search_call", "status": "in_progress"}
    told: list[Data] = [{"type": "response.web_search_call.searching"}]
    return _item(made, index, item, told, {**item, "status": "completed", "action": {"query": "q"}})
