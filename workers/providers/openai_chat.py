"""OpenAI's chat completions API, and what speaks like it: the chunks of one response → items.

- Content, reasoning and refusal are one block each; calls are told apart by ``chat_calls``. Blocks are numbered in the
  order in which they begin; choices never mix.
- Reasoning comes as ``reasoning_content`` or ``reasoning``, or in ``reasoning_details``: there each entry's ``index``
  is a block, with its signature, or encrypted.
- Usage is cumulative, wherever in the chunk it stands, and however often.
- ``citations`` is the same list in every chunk: each place in it becomes an annotation once.
- A finish reason is the choice's first. ``[DONE]`` ends a response too, for those who send no reason.
- Growing snapshots instead of deltas (DashScope) are never guessed: ``snapshots=True`` reads them.
- What is not known here is ``event provider.event``.

Pure.
"""

from __future__ import annotations

from typing import Any, ClassVar

from broker.items import Annotation, Event, Item
from workers.providers.adapter import ProviderError
from workers.providers.chat_choice import Choice
from workers.providers.chat_usage import counts_of, usage_of
from workers.providers.decoding import DONE
from workers.providers.reading import as_count, as_dict, as_list, as_text
from workers.providers.usage import UsageCounter

__all__ = ["OpenAIChat"]

_KNOWN = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "citations", "obfuscation"})
_STATE = frozenset({"provider", "service_tier", "system_fingerprint", "search_results", "sla_metrics", "x_groq"})
"""Fields that some repeat in every chunk: told when they change."""
_ERROR_MAX = 4_000


class OpenAIChat:
    """Reads one response, with all its choices."""

    api: ClassVar[str] = "openai.chat"
    hears_done: ClassVar[bool] = True
    takes_snapshots: ClassVar[bool] = True

    def __init__(self, round: int = 1, *, snapshots: bool = False) -> None:
        self.error: ProviderError | None = None
        self.usage = UsageCounter()
        self._round, self._snapshots = round, snapshots
        self._id = self._model = ""
        self._began = self._done = self._closed = False
        self._choices: dict[int, Choice] = {}
        self._citations: list[Any] = []
        self._state: dict[str, Any] = {}

    def feed(self, event: str, data: Any) -> list[Item]:
        if self._closed:
            return []
        if event == DONE:
            self._done = True
            return self.close()
        if not isinstance(data, dict):
            return self._unknown({"event": event, "data": data})
        self._id = self._id or as_text(data.get("id"))
        self._model = self._model or as_text(data.get("model"))
        items: list[Item] = []
        for told in as_list(data.get("choices")):
            items += self._choice(as_dict(told))
        if citations := data.get("citations"):
            items += self._cite(as_list(citations))
        if (counts := usage_of(data)) is not None:
            items += self.usage.set(**counts_of(counts))
        if event == "error" or data.get("error") or data.get("object") == "error":
            items += self._fail(data.get("error") or data)
        else:
            items += self._extras(data)
        return items

    def close(self) -> list[Item]:
        if self._closed:
            return []
        items = self._begin() if self._choices or self.error else []
        for number in sorted(self._choices):
            items += self._choices[number].close()
        self._closed = True
        open_choices = [c for c in self._choices.values() if not c.finish_reason]
        if self.error is None and not self._done and (open_choices or not self._choices):
            self.error = ProviderError("incomplete_stream", "the stream ended without a finish reason")
        for number in sorted(self._choices) or ([0] if self._began else []):
            items += self._completed(number)
        return items

    def _completed(self, number: int) -> list[Item]:
        choice = self._choices.get(number)
        facts: dict[str, Any] = {
            "round": self._round,
            **({"choice": number} if number else {}),
            "finish_reason": choice.finish_reason if choice else None,
            "model": self._model or None,
            "response_id": self._id or None,
            **(choice.facts if choice else {}),
        }
        if not facts["finish_reason"] and (not self._done or self.error is not None):
            facts["incomplete"] = True
        said = {k: facts[k] for k in ("finish_reason", "model") if facts[k]}
        return [Event(name="model.completed", payload=facts), *(choice.whole(said) if choice else [])]

    def _begin(self) -> list[Item]:
        if self._began:
            return []
        self._began = True
        facts = {"round": self._round, "model": self._model or None, "response_id": self._id or None}
        return [Event(name="model.started", payload=facts)]

    def _choice(self, told: dict[str, Any]) -> list[Item]:
        items = [] if self._began else self._begin()
        if self.error is not None:
            return items
        number = as_count(told.get("index")) or 0
        choice = self._choices.get(number)
        if choice is None:
            choice = self._choices[number] = Choice(self._round, number, snapshots=self._snapshots)
        items += choice.feed(told)
        if told.get("error") or choice.finish_reason == "error":
            items += self._fail(told.get("error") or {"code": "provider_error", "message": "finish_reason is error"})
        return items

    def _cite(self, citations: list[Any]) -> list[Item]:
        """They belong to the text of the first choice."""
        if citations == self._citations[: len(citations)]:
            return []
        index = self._choices[0].text_index() if 0 in self._choices else 0
        news = [c for n, c in enumerate(citations) if n >= len(self._citations) or c != self._citations[n]]
        self._citations = citations
        return [Annotation(round=self._round, index=index, annotation=citation) for citation in news]

    def _fail(self, told: Any) -> list[Item]:
        """An error where the answer should be. What came before it stays, what comes behind it does not count."""
        if self.error is not None:
            return []
        facts = told if isinstance(told, dict) else {"message": told}
        code = next((str(facts[k]) for k in ("code", "type", "status") if facts.get(k)), "provider_error")
        message = str(facts.get("message") or facts.get("detail") or code)[:_ERROR_MAX]
        self.error = ProviderError(code, message)
        payload = {"round": self._round, "code": code, "message": message, "error": told}
        return [*self._begin(), Event(name="model.failed", payload=payload)]

    def _extras(self, data: dict[str, Any]) -> list[Item]:
        """Fields that no item has, each as often as it comes; those in ``_STATE`` when they change."""
        extras: dict[str, Any] = {}
        for name, value in data.items():
            if name not in _KNOWN and value is not None and self._is_news(name, value):
                extras[name] = value
        return self._unknown({"data": extras}) if extras else []

    def _is_news(self, name: str, value: Any) -> bool:
        if name not in _STATE:
            return True
        news = bool(self._state.get(name) != value)
        self._state[name] = value
        return news

    def _unknown(self, facts: dict[str, Any]) -> list[Item]:
        return [Event(name="provider.event", payload={"round": self._round, **facts})]
