"""Settings: numbers that an operator may mistype end somewhere, in every settings object."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from broker.finite import LONGEST, SHORTEST, FiniteSettings
from broker.settings import Settings
from gateway.webui.settings import WebuiSettings
from workers.hermes.settings import HermesSettings
from workers.llm.settings import LlmSettings
from workers.remote.settings import RemoteSettings

ALL: tuple[type[FiniteSettings], ...] = (Settings, WebuiSettings, HermesSettings, LlmSettings, RemoteSettings)
FLOATS = [(kind, name) for kind in ALL for name, field in kind.model_fields.items() if field.annotation is float]
INTS = [(kind, name) for kind in ALL for name, field in kind.model_fields.items() if field.annotation is int]


@pytest.mark.parametrize(("kind", "name"), FLOATS)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e300"])
def test_no_duration_is_endless(kind: type[FiniteSettings], name: str, value: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind(**{name: value})  # type: ignore[arg-type]  # as text, as the environment has it
    assert [error["loc"] for error in caught.value.errors()] in (
        [(name,)],
        [(kind.model_fields[name].validation_alias,)],
    )


@pytest.mark.parametrize(("kind", "name"), INTS)
def test_no_count_is_beyond_what_a_server_counts(kind: type[FiniteSettings], name: str) -> None:
    with pytest.raises(ValidationError):
        kind(**{name: "9" * 30})  # type: ignore[arg-type]


def test_a_share_is_no_duration() -> None:
    assert HermesSettings(review_below=0.0005).review_below == 0.0005
    with pytest.raises(ValidationError):
        HermesSettings(review_below=float("nan"))


def test_a_socket_takes_what_it_is_told() -> None:
    with pytest.raises(ValidationError):
        Settings(high_water=2**31)


def test_there_are_such_fields_in_all() -> None:
    assert {kind for kind, _ in FLOATS} == set(ALL)
    assert len(FLOATS) > 30
    assert len(INTS) > 20


def test_a_duration_that_a_server_takes_for_none_is_refused() -> None:
    with pytest.raises(ValidationError, match=str(SHORTEST)):
        Settings(block=SHORTEST / 2)
    assert Settings(block=SHORTEST, run_ttl=LONGEST, worker_drain=0).block == SHORTEST
