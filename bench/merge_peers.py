"""The peers of the merge: how each SDK comes from a provider's bytes, or from decoded JSON, to its own message.

Each is used as its own streaming code uses it, less what else that does (events for callbacks, requests, retries).
A peer that is not installed is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["PEERS", "Peer", "Said", "installed"]

Chunk = dict[str, Any]
Said = tuple[str, str, list[tuple[str, Any]]]
"""What a message says: its text, its reasoning, and its calls as name and arguments."""


@dataclass(frozen=True)
class Peer:
    """``fold`` makes a message of ``chunks``, its own objects, which it makes of decoded JSON with ``prepare``.

    ``parse`` makes them of the bytes, piece by piece; None: its chunks come from another SDK. ``own``: it is the
    provider's own, so the recorded streams are its to read as well. ``folds_only``: ``prepare`` is none of its work.
    """

    name: str
    api: str
    prepare: Callable[[Iterable[Chunk]], Iterable[Any]]
    fold: Callable[[Iterable[Any]], Any]
    said: Callable[[Any], Said]
    parse: Callable[[Iterable[bytes]], Iterable[Any]] | None = None
    own: bool = False
    folds_only: bool = False


def installed() -> list[Peer]:
    """The peers that this interpreter has. One whose insides are not where they were is none."""
    peers: list[Peer] = []
    for make in PEERS:
        try:
            peers += make()
        except (ImportError, AttributeError, PackageNotFoundError):
            continue
    return peers


def _response(pieces: Iterable[bytes]) -> Any:
    """A response whose body comes in these pieces, in the kind of httpx that the SDKs use."""
    httpx = import_module("openai._base_client").__dict__.get("httpx2") or import_module("httpx")

    class Body(httpx.SyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            return iter(pieces)

    return httpx.Response(200, stream=Body(), request=httpx.Request("POST", "http://localhost"))


def _reader(sdk: Any, client: Any, kind: Any) -> tuple[Callable[[Iterable[bytes]], Any], Callable[..., Any]]:
    """``parse`` and ``prepare`` of an SDK that was generated as OpenAI's and Anthropic's are."""

    def parse(pieces: Iterable[bytes]) -> Any:
        return sdk.Stream(cast_to=kind, response=_response(pieces), client=client)

    def prepare(chunks: Iterable[Chunk]) -> Iterator[Any]:
        response = _response([])
        return (client._process_response_data(data=c, cast_to=kind, response=response) for c in chunks)

    return parse, prepare


def _openai_chat() -> list[Peer]:
    sdk = import_module("openai")
    kind = import_module("openai.types.chat").ChatCompletionChunk
    state_of = import_module("openai.lib.streaming.chat").ChatCompletionStreamState
    parse, prepare = _reader(sdk, sdk.OpenAI(api_key="none"), kind)

    def fold(chunks: Iterable[Any]) -> Any:
        state = state_of()
        for chunk in chunks:
            state.handle_chunk(chunk)
        return state.get_final_completion().choices[0].message

    def said(message: Any) -> Said:
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
        return message.content or "", getattr(message, "reasoning_content", ""), calls

    return [Peer(f"openai {version('openai')}", "openai.chat", prepare, fold, said, parse, own=True)]


def _openai_responses() -> list[Peer]:
    sdk = import_module("openai")
    kind = import_module("openai.types.responses").ResponseStreamEvent
    state_of = import_module("openai.lib.streaming.responses._responses").ResponseStreamState
    parse, prepare = _reader(sdk, sdk.OpenAI(api_key="none"), kind)

    def fold(chunks: Iterable[Any]) -> Any:
        state = state_of(input_tools=sdk.omit, text_format=sdk.omit)
        for chunk in chunks:
            state.handle_event(chunk)
        return state._completed_response

    def said(message: Any) -> Said:
        calls = [(o.name, json.loads(o.arguments)) for o in message.output if o.type == "function_call"]
        return message.output_text, "", calls

    return [Peer(f"openai {version('openai')}", "openai.responses", prepare, fold, said, parse, own=True)]


def _anthropic() -> list[Peer]:
    sdk = import_module("anthropic")
    kind = import_module("anthropic.types").RawMessageStreamEvent
    accumulate = import_module("anthropic.lib.streaming._messages").accumulate_event
    parse, prepare = _reader(sdk, sdk.Anthropic(api_key="none"), kind)

    def fold(chunks: Iterable[Any]) -> Any:
        message, buffers = None, dict[int, bytes]()
        for chunk in chunks:
            message = accumulate(event=chunk, current_snapshot=message, json_bufs=buffers)
        return message

    def said(message: Any) -> Said:
        calls = [(b.name, b.input) for b in message.content if b.type == "tool_use"]
        texts, thoughts = ([b for b in message.content if b.type == kind] for kind in ("text", "thinking"))
        return "".join(b.text for b in texts), "".join(b.thinking for b in thoughts), calls

    return [Peer(f"anthropic {version('anthropic')}", "anthropic.messages", prepare, fold, said, parse, own=True)]


def _langchain() -> list[Peer]:
    """Chunks added one by one, as an application does that shows them, and all at once at the end."""
    model = import_module("langchain_openai").ChatOpenAI(api_key="none", model="gpt-4o")
    messages = import_module("langchain_core.messages.ai")

    def prepare(chunks: Iterable[Chunk]) -> Iterator[Any]:
        made = (model._convert_chunk_to_generation_chunk(c, messages.AIMessageChunk, None) for c in chunks)
        return (chunk.message for chunk in made if chunk is not None)

    def one_by_one(chunks: Iterable[Any]) -> Any:
        whole = None
        for chunk in chunks:
            whole = chunk if whole is None else whole + chunk
        return whole

    def at_once(chunks: Iterable[Any]) -> Any:
        return messages.add_ai_message_chunks(*chunks)

    def said(message: Any) -> Said:
        thought = message.additional_kwargs.get("reasoning_content", "")
        return message.content, thought, [(c["name"], c["args"]) for c in message.tool_calls]

    name = f"langchain-core {version('langchain-core')}"
    return [
        Peer(f"{name}, one by one", "openai.chat", prepare, one_by_one, said),
        Peer(f"{name}, at the end", "openai.chat", prepare, at_once, said),
    ]


def _litellm() -> list[Peer]:
    """Its chunks are kept, and merged at the end."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it looks for a newer one, over the network
    build = import_module("litellm").stream_chunk_builder
    kind = import_module("litellm.types.utils").ModelResponseStream

    def prepare(chunks: Iterable[Chunk]) -> Iterator[Any]:
        return (kind(**chunk) for chunk in chunks)

    def fold(chunks: Iterable[Any]) -> Any:
        return build(list(chunks)).choices[0].message

    def said(message: Any) -> Said:
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
        return message.content or "", getattr(message, "reasoning_content", "") or "", calls

    return [Peer(f"litellm {version('litellm')}", "openai.chat", prepare, fold, said)]


def _pydantic_ai() -> list[Peer]:
    """Its parts alone: ``prepare`` says only which method is called with what, so only ``fold`` is its own work."""
    parts = import_module("pydantic_ai._parts_manager").ModelResponsePartsManager
    parameters = import_module("pydantic_ai.models").ModelRequestParameters

    def prepare(chunks: Iterable[Chunk]) -> Iterator[tuple[str, dict[str, Any]]]:
        for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
            if text := delta.get("reasoning_content"):
                yield "handle_thinking_delta", {"vendor_part_id": "reasoning", "content": text}
            if text := delta.get("content"):
                yield "handle_text_delta", {"vendor_part_id": "content", "content": text}
            for call in delta.get("tool_calls") or ():
                told = {"tool_call_id": call.get("id"), "tool_name": call["function"].get("name")}
                told["args"] = call["function"].get("arguments")
                yield "handle_tool_call_delta", {"vendor_part_id": call["index"], **told}

    def fold(chunks: Iterable[tuple[str, dict[str, Any]]]) -> Any:
        made = parts(parameters())
        for name, told in chunks:
            event = getattr(made, name)(**told)
            if name != "handle_tool_call_delta":
                for _ in event:
                    pass
        return made.get_parts()

    def said(message: Any) -> Said:
        calls = [(p.tool_name, p.args_as_dict()) for p in message if p.part_kind == "tool-call"]
        texts, thoughts = ([p for p in message if p.part_kind == kind] for kind in ("text", "thinking"))
        return "".join(p.content for p in texts), "".join(p.content for p in thoughts), calls

    name = f"pydantic-ai {version('pydantic-ai-slim')}, parts"
    return [Peer(name, "openai.chat", prepare, fold, said, folds_only=True)]


PEERS: list[Callable[[], list[Peer]]] = [
    _openai_chat,
    _openai_responses,
    _anthropic,
    _langchain,
    _litellm,
    _pydantic_ai,
]
