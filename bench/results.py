"""What a row measured: figures to read, ratios against their goals, and checks that must hold on any machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.lab import Lab

__all__ = ["Check", "Ratio", "Result", "Row", "paired"]


@dataclass
class Ratio:
    """``value`` is to be at most ``limit`` (``at_least``: at least). A noisy machine can miss it: no failure."""

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{self.what}: {self.value:.3g} (goal {sign} {self.limit:g})"


@dataclass
class Check:
    """A count, or that nothing is lost: wrong is wrong on every machine."""

    what: str
    ok: bool

    def __str__(self) -> str:
        return f"{self.what}: {'yes' if self.ok else 'NO'}"


@dataclass
class Result:
    figures: dict[str, float | int | str] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def at_most(self, what: str, value: float, limit: float) -> None:
        self.ratios.append(Ratio(what, value, limit))

    def at_least(self, what: str, value: float, limit: float) -> None:
        self.ratios.append(Ratio(what, value, limit, at_least=True))

    def check(self, what: str, ok: object) -> None:
        """Checked more than once under the same words, it must hold every time."""
        for known in self.checks:
            if known.what == what:
                known.ok = known.ok and bool(ok)
                return
        self.checks.append(Check(what, bool(ok)))

    @property
    def sound(self) -> bool:
        return all(check.ok for check in self.checks)


def paired(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """The median of the pairs' ratios; 0.0 where there is none.

    A pair is left out where theirs took nothing that can be measured: the kernel counts CPU in ticks, and the short
    form is over within one.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b]
    return median(ratios) if ratios else 0.0


@dataclass(frozen=True)
class Row:
    """One row of the table: ``run`` measures it with the lab's servers."""

    name: str
    what: str
    run: Callable[[Lab], Awaitable[Result]]
