"""The endpoint that the runner ``llm`` asks, as this machine's environment sets it. Nothing is sent to it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_settings import SettingsError

from workers.llm.endpoints import configured
from workers.llm.settings import LlmSettings, VendorKeys
from workers.runner import RunnerFailed

__all__ = ["Llm", "find"]


@dataclass(frozen=True, slots=True)
class Llm:
    """``lacks``: what has to be set before a run can use it. ``wrong``: why its settings cannot be read at all."""

    endpoint: str = ""
    model: str = ""
    lacks: tuple[str, ...] = ()
    wrong: str = ""


def find() -> Llm:
    """Raises nothing, and quotes no key."""
    try:
        settings = LlmSettings()
        endpoint = configured(settings, VendorKeys())
    except ValidationError as error:
        return Llm(wrong="; ".join(_said(one["loc"], one["msg"]) for one in error.errors(include_input=False)))
    except SettingsError as error:
        return Llm(wrong=str(error))
    except RunnerFailed as failed:
        return Llm(wrong=failed.message)
    lacks = (f"LLM_KEY or {endpoint.needs}" if endpoint.needs else "", "" if settings.model else "LLM_MODEL")
    return Llm(str(endpoint), settings.model, tuple(name for name in lacks if name))


def _said(where: tuple[int | str, ...], message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text if text.startswith("LLM_") else f"LLM_{str(where[0]).upper()}: {text}" if where else text
