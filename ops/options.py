"""Options that several commands share, and the settings that come of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from broker.errors import InvalidRequest, UnknownMode
from broker.items import Mode, parse_modes
from broker.settings import Settings

__all__ = [
    "MODES",
    "ModesParam",
    "Number",
    "default_of",
    "json_option",
    "load_settings",
    "modes_option",
    "redis_option",
]

F = TypeVar("F", bound=Callable[..., Any])


class ModesParam(click.ParamType[Mode]):
    """``messages,tools`` → ``Mode``."""

    name = "modes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mode:
        if isinstance(value, Mode):
            return value
        try:
            return parse_modes(str(value))
        except UnknownMode as error:
            self.fail(str(error), param, ctx)


MODES = ModesParam()


class Number(click.FloatRange):
    """As ``FloatRange``, without NaN and infinities: no bound refuses the one, and an open range not the others."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            known = math.isfinite(float(value))
        except (TypeError, ValueError):
            known = False
        if not known:
            self.fail(f"{value!r} is no number.", param, ctx)
        return super().convert(value, param, ctx)


def default_of(setting: str) -> str:
    """For an option's help: the setting that decides where it is left out, and what that is by itself."""
    default = Settings.model_fields[setting].default
    return f"  [default: RUNCAST_{setting.upper()}{'' if default is None else f', else {default}'}]"


def redis_option(command: F) -> F:
    return click.option(
        "--redis",
        "redis_url",
        metavar="URL",
        help="The store: redis://, rediss://, redis+cluster://, redis+sentinel://, unix://, embedded:[DIR]. "
        "Default: RUNCAST_REDIS_URL, else embedded:.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON on stdout, one value a line.")(command)


def modes_option(command: F) -> F:
    return click.option(
        "--modes",
        type=MODES,
        metavar="MODES",
        help="What to show, comma separated: messages, tools, usage, cost, events (everything), final.",
    )(command)


def load_settings(redis_url: str | None = None, **overrides: Any) -> Settings:
    """The settings of the environment, with what the command line says on top (``None`` says nothing).

    Raises ``InvalidRequest``, naming the variable that is wrong.
    """
    given = {"redis_url": redis_url or _inherited(), **overrides}
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        wrong = "; ".join(
            f"RUNCAST_{'_'.join(map(str, e['loc'])).upper()}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise InvalidRequest(f"a setting is wrong: {wrong}", field="settings") from None


def _inherited() -> str | None:
    """``runcast --redis URL run …``: the option before the command's name."""
    context = click.get_current_context(silent=True)
    return context.find_root().params.get("redis_url") if context else None
