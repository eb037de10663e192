"""Gemini's generateContent, of the Gemini API and of Vertex AI: each event is a response with the next parts.

- Parts of one kind that follow one another are one block: text, and reasoning where ``thought`` is true. A
  ``thoughtSignature`` belongs to its part, so it ends the block; on a part without text it belongs to the text before.
- Function calls come whole and mostly without an id; on Vertex AI they may be streamed (``partialArgs``).
- Code that was run, its result, inline data and all other parts become ``provider.block``.
- Grounding, citations and URL contexts are annotations of the text so far, as they come, under the field's name.
- Each candidate is a choice. The stream has no end of its own: a candidate is whole once it has a ``finishReason``.
  One that goes on behind it (early models said STOP on each event) was not finished yet.
- Usage is cumulative, field by field. Input is the prompt, with its cached part, and what tools added to it; output
  is the candidates and the thoughts.
- A prompt that was blocked is an error, ``prompt_blocked``.

Source: the reference of the Gemini API, and the types of google-genai. Pure.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import UNSET, UnsetType

from broker.items import Annotation, Event, Item, MessageDelta, ReasoningDelta, ToolCallDelta
from workers.providers.adapter import ProviderError
from workers.providers.partial_arguments import PartialArguments
from workers.providers.places import Places
from workers.providers.reading import as_count, as_dict, as_list, as_text, dump
from workers.providers.response import Response, place

__all__ = ["GoogleGenerateContent"]

_ANNOTATIONS = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
_READ = frozenset({"content", "index", "finishReason", "logprobsResult", *_ANNOTATIONS})
_READ_OF_RESPONSE = frozenset({"candidates", "modelVersion", "responseId", "usageMetadata"})
_READ_OF_PART = frozenset({"text", "thought", "thoughtSignature", "functionCall"})
_COUNTS = frozenset({"promptTokenCount", "candidatesTokenCount", "totalTokenCount", "thoughtsTokenCount"}) | {
    "toolUsePromptTokenCount",
    "cachedContentTokenCount",
}


class _Candidate:
    """One choice under way."""

    __slots__ = ("arguments", "call_id", "calls", "choice", "details", "finish_reason", "index", "number", "places")

    def __init__(self, number: int) -> None:
        self.number = number
        self.choice: int | UnsetType = number or UNSET
        self.places = Places()
        self.finish_reason: str | None = None
        self.details: dict[str, Any] = {}
        self.calls = 0
        self.arguments: PartialArguments | None = None
        """Those of the call that is being streamed; ``index`` and ``call_id`` are its own."""
        self.index = 0
        self.call_id = ""


class GoogleGenerateContent(Response):
    """The adapter of ``google.generateContent``. ``usage`` is declared cumulative."""

    api: ClassVar[str] = "google.generateContent"

    def __init__(self, round: int = 1) -> None:
        super().__init__(round)
        self._candidates: dict[int, _Candidate] = {}
        self._counts: dict[str, Any] = {}
        self._details: dict[str, Any] = {}

    def feed(self, event: str, data: Any) -> list[Item]:
        """One event → items; what comes behind an error is not read."""
        if isinstance(data, list):
            return [item for element in data for item in self.feed(event, element)]
        if self.error is not None:
            return []
        if not isinstance(data, dict):
            return self.unknown(event, data)
        items = self.began(as_text(data.get("modelVersion")), as_text(data.get("responseId")))
        if data.get("error"):
            return items + self._error(data["error"])
        for position, candidate in enumerate(as_list(data.get("candidates"))):
            items += self._candidate(position, as_dict(candidate))
        items += self._count(data.get("usageMetadata"))
        if not data.keys() <= _READ_OF_RESPONSE:
            self._details |= {name: value for name, value in data.items() if name not in _READ_OF_RESPONSE and value}
            items += self._feedback(as_dict(data.get("promptFeedback")))
        return items

    def close(self) -> list[Item]:
        """The end of the bytes: the end of each choice that has a ``finishReason``, and the breaking off of others."""
        if self.completed:
            return []
        items = self.began() + self._tell_details()
        unfinished = any(c.finish_reason is None for c in self._candidates.values()) or not self._candidates
        if unfinished and self.error is None:
            self.error = ProviderError("incomplete_stream", "the stream ended without a finish reason")
        if not self._candidates:
            return items + self.break_off()
        self.completed = True
        return items + [self._end(self._candidates[number]) for number in sorted(self._candidates)]

    # -- the response as a whole

    def _error(self, error: Any) -> list[Item]:
        told = as_dict(error)
        number = as_count(told.get("code"))
        code = as_text(told.get("status")) or (str(number) if number is not None else "provider_error")
        return self.fail(code, as_text(told.get("message")) or dump(error))

    def _feedback(self, feedback: dict[str, Any]) -> list[Item]:
        reason = as_text(feedback.get("blockReason"))
        if not reason:
            return []
        said = as_text(feedback.get("blockReasonMessage"))
        message = f"the prompt was blocked: {reason}" + (f" ({said})" if said else "")
        return self.fail("prompt_blocked", message, reason=reason)

    def _count(self, usage: Any) -> list[Item]:
        told = as_dict(usage)
        if not told:
            return []
        self._counts |= {name: count for name, count in told.items() if count is not None}
        return self.usage.set(
            input_tokens=self._sum("promptTokenCount", "toolUsePromptTokenCount"),
            output_tokens=self._sum("candidatesTokenCount", "thoughtsTokenCount"),
            cache_read_tokens=self._counts.get("cachedContentTokenCount"),
            reasoning_tokens=self._counts.get("thoughtsTokenCount"),
        )

    def _sum(self, name: str, beside: str) -> int | None:
        count, more = as_count(self._counts.get(name)), as_count(self._counts.get(beside))
        return more if count is None else count + (more or 0)

    def _tell_details(self) -> list[Item]:
        """Once, at the end: the counts by modality, the service tier, and what else came along."""
        usage = {name: value for name, value in self._counts.items() if name not in _COUNTS}
        details = self._details | ({"usageMetadata": usage} if usage else {})
        return self.unknown("response", details) if details else []

    def _end(self, candidate: _Candidate) -> Item:
        reason = candidate.finish_reason
        payload: dict[str, Any] = {"round": self.round, "finish_reason": reason, **self._names()}
        if candidate.number:
            payload["choice"] = candidate.number
        if candidate.details:
            payload["details"] = candidate.details
        return Event(name="model.completed", payload=payload | ({} if reason else {"incomplete": True}))

    # -- a choice

    def _candidate(self, position: int, told: dict[str, Any]) -> list[Item]:
        number = place(told.get("index"), position)
        candidate = self._candidates.get(number)
        if candidate is None:
            candidate = self._candidates[number] = _Candidate(number)
        items: list[Item] = []
        for part in as_list(as_dict(told.get("content")).get("parts")):
            items += self._part(candidate, as_dict(part))
        if items:
            candidate.finish_reason = None
        for field in _ANNOTATIONS:
            if told.get(field):
                items += self._annotate(candidate, field, told[field])
        if told.get("logprobsResult"):
            items += self._in_choice(candidate, "logprobsResult", told["logprobsResult"])
        reason = as_text(told.get("finishReason"))
        if reason and reason != "FINISH_REASON_UNSPECIFIED":
            candidate.finish_reason = candidate.finish_reason or reason
        if not told.keys() <= _READ:
            candidate.details |= {name: value for name, value in told.items() if name not in _READ}
        return items

    def _annotate(self, candidate: _Candidate, field: str, value: Any) -> list[Item]:
        index = candidate.places.text
        if index is None:
            return self._in_choice(candidate, field, value)
        annotation = {field: value}
        return [Annotation(round=self.round, index=index, choice=candidate.choice, annotation=annotation)]

    def _in_choice(self, candidate: _Candidate, event: str, data: Any) -> list[Item]:
        return self.unknown(event, {"choice": candidate.number, event: data} if candidate.number else data)

    # -- a part

    def _part(self, candidate: _Candidate, part: dict[str, Any]) -> list[Item]:
        call = part.get("functionCall")
        items: list[Item] = []
        if not part.keys() <= _READ_OF_PART:
            items.append(self._block(candidate, part))
        elif not isinstance(call, dict) or part.get("text"):
            items += self._text(candidate, part)
        if isinstance(call, dict):
            items += self._call(candidate, call, as_text(part.get("thoughtSignature")) or UNSET)
        return items

    def _block(self, candidate: _Candidate, part: dict[str, Any]) -> Item:
        block = self.block(candidate.places.alone(), part)
        return Event(
            name=block.name, payload=block.payload | ({"choice": candidate.number} if candidate.number else {})
        )

    def _text(self, candidate: _Candidate, part: dict[str, Any]) -> list[Item]:
        text, signature = as_text(part.get("text")), as_text(part.get("thoughtSignature")) or UNSET
        if not text and signature is UNSET:
            return []
        thought = part.get("thought") is True
        index = candidate.places.go_on("reasoning" if thought else "text")
        if signature is not UNSET:
            candidate.places.end()
        made = ReasoningDelta if thought else MessageDelta
        return [made(round=self.round, index=index, choice=candidate.choice, text=text, signature=signature)]

    def _call(self, candidate: _Candidate, call: dict[str, Any], signature: str | UnsetType) -> list[Item]:
        name, values = as_text(call.get("name")), as_list(call.get("partialArgs"))
        going_on = candidate.arguments is not None and not name and call.get("args") is None
        if not going_on:
            if not name and call.get("args") is None and not values:
                return []  # the end of a streamed call that was never begun
            self._begin_call(candidate, call)
        streamed = bool(going_on or values or call.get("willContinue"))
        text = self._stream(candidate, call, values) if streamed else dump(call.get("args"))
        if going_on and not text and signature is UNSET:
            return []
        return [
            ToolCallDelta(
                round=self.round,
                index=candidate.index,
                choice=candidate.choice,
                call_id=candidate.call_id,
                name=name or UNSET,
                arguments=text,
                signature=signature,
            )
        ]

    def _begin_call(self, candidate: _Candidate, call: dict[str, Any]) -> None:
        candidate.calls += 1
        place = f"{self.round}_{candidate.number}" if candidate.number else f"{self.round}"
        candidate.call_id = as_text(call.get("id")) or f"call_{place}_{candidate.calls}"
        candidate.index = candidate.places.alone()
        candidate.arguments = None

    def _stream(self, candidate: _Candidate, call: dict[str, Any], values: list[Any]) -> str:
        """The next values of a streamed call. It ends with the part that does not say that it goes on."""
        arguments = candidate.arguments = candidate.arguments or PartialArguments()
        text = arguments.feed(values)
        if call.get("willContinue") or any(as_dict(value).get("willContinue") for value in values):
            return text
        candidate.arguments = None
        return text + arguments.close()
