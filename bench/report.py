"""``bench/results.json`` → what docs/performance.md shows of it: a table, and a plot of the peers.

``python -m bench.report`` writes both; ``make bench`` does, too. Nothing in them is written by hand: a test compares.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["BEGIN", "END", "PAGE", "PLOT", "RESULTS", "plot", "shown", "tables", "write"]

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
PLOT = PAGE.with_suffix(".svg")
BEGIN, END = "<!-- from bench/results.json -->\n", "<!-- end -->\n"

_PANELS = (
    ("P1", "µs a frame, ", "P1: µs of CPU a frame"),
    ("P2", "µs a frame, ", "P2: in bursts of ten"),
    ("P3", "µs an item, ", "P3: replay, µs of CPU an item"),
)
_OURS = {"runcast"}
_LEFT, _WIDE, _BAR, _GAP = 230, 420, 16, 6
_STYLE = """
  text { font: 12px sans-serif; fill: #24292f } .t { font-weight: bold; font-size: 13px }
  .g { stroke: #8884 } .o { fill: #0969da } .p { fill: #8c959f }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .o { fill: #4493f8 } .p { fill: #6e7681 } }
"""


def tables(results: dict[str, Any]) -> str:
    """Markdown: the goals and whether each was met, the figures, and what is to be known of them."""
    rows: dict[str, Any] = results["rows"]
    lines = ["| | measured | | goal | |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        for ratio in row["ratios"]:
            sign = "≥" if ratio["at_least"] else "≤"
            met = "met" if ratio["met"] else "**missed**"
            lines.append(
                f"| {name} | {ratio['what']} | {_number(ratio['value'])} | {sign} {ratio['limit']:g} | {met} |"
            )
        wrong = [check["what"] for check in row["checks"] if not check["ok"]]
        if row["checks"]:
            said = f"**wrong:** {'; '.join(wrong)}" if wrong else "; ".join(check["what"] for check in row["checks"])
            lines.append(f"| {name} | {said} | | all | {'**wrong**' if wrong else 'met'} |")
    lines += ["", "Figures, medians of the turns:", ""]
    for name, row in rows.items():
        if row["figures"]:
            figures = ", ".join(f"{what} {value}" for what, value in row["figures"].items())
            lines.append(f"- {name}: {figures}.")
    notes = [f"- {name}: {note}" for name, row in rows.items() for note in row["notes"]]
    if notes:
        lines += ["", "Notes of that run:", "", *notes]
    lines += ["", "Measured on:", "", *(f"- {name}: {value}" for name, value in results["machine"].items())]
    loads = ", ".join(f"{name} {row['load']}" for name, row in rows.items() if "load" in row)
    if loads:
        lines.append(f"- load of the machine as each row began: {loads}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1_000 else f"{value:.0f}"


def plot(results: dict[str, Any]) -> str:
    """SVG: bars on a logarithmic scale, for light and dark pages."""
    parts, top = [], 0
    for name, prefix, title in _PANELS:
        figures = results["rows"].get(name, {}).get("figures", {})
        bars = {what.removeprefix(prefix): value for what, value in figures.items() if what.startswith(prefix)}
        if bars:
            drawn, top = _panel(title, bars, top)
            parts += drawn
    body = "\n".join(parts)
    size = f'width="{_LEFT + _WIDE + 70}" height="{top}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>\n{body}\n</svg>\n'


def _panel(title: str, bars: dict[str, float], top: int) -> tuple[list[str], int]:
    """Its elements, and where the next one begins."""
    least = 10.0 ** math.floor(math.log10(max(min(bars.values()), 0.01)) - 0.01)
    decades = max(math.ceil(math.log10(max(bars.values()) / least)), 1)
    bottom = top + 30 + len(bars) * (_BAR + _GAP)
    drawn = [f'<text class="t" x="{_LEFT}" y="{top + 18}">{escape(title)}</text>']
    for decade in range(decades + 1):
        x = _LEFT + _WIDE * decade / decades
        drawn.append(f'<line class="g" x1="{x:.0f}" x2="{x:.0f}" y1="{top + 26}" y2="{bottom}"/>')
        drawn.append(f'<text x="{x:.0f}" y="{bottom + 14}" text-anchor="middle">{least * 10**decade:g}</text>')
    for number, (name, value) in enumerate(sorted(bars.items(), key=lambda bar: bar[1])):
        y = top + 30 + number * (_BAR + _GAP)
        wide = max(_WIDE * math.log10(max(value, least) / least) / decades, 1.0)
        kind = "o" if name.partition(",")[0] in _OURS else "p"
        drawn.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{wide:.1f}" height="{_BAR}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        drawn.append(f'<text x="{_LEFT + wide + 6:.1f}" y="{y + 12}">{value:g}</text>')
    return drawn, bottom + 34


def shown(page: str) -> str:
    """What a page has between the two marks."""
    return page.partition(BEGIN)[2].partition(END)[0]


def write(results: dict[str, Any]) -> None:
    """Put both into docs/."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables(results) + END + rest.partition(END)[2])
    PLOT.write_text(plot(results))


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()))
