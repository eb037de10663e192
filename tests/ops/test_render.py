"""How items look: the answer alone, everything for a person, JSON lines."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from rich.cells import cell_len

from ops.follow import Line
from ops.render import JsonLines, PlainText, Renderer, Watched, message_text, seconds, tokens
from ops.terminal import Terminal, printable

FINAL = {"ts": 12.0, "message": {"role": "assistant", "content": [{"type": "text", "text": "whole"}]}}


class Screen:
    def __init__(self) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.terminal = Terminal(self.out, self.err)

    def show(self, renderer: Renderer, *items: tuple[str, dict[str, Any]]) -> str:
        for seq, (type_, fields) in enumerate(items, 1):
            renderer.feed(Line(seq, type_, fields))
        renderer.close("completed")
        return self.out.getvalue()


@pytest.fixture
def screen() -> Screen:
    return Screen()


def delta(text: str) -> tuple[str, dict[str, Any]]:
    return "message.delta", {"ts": 10.0, "text": text}


def test_plain_text_is_the_answer_and_nothing_else(screen: Screen) -> None:
    tool = {"call_id": "c", "name": "clock", "args": {}}
    shown = screen.show(
        PlainText(screen.terminal),
        ("reasoning.delta", {"text": "hm"}),
        delta("a"),
        ("tool.started", tool),
        delta(" b"),
        ("final", FINAL),
    )
    assert shown == "a b\n"
    assert screen.err.getvalue() == ""


def test_plain_text_adds_no_second_newline(screen: Screen) -> None:
    assert screen.show(PlainText(screen.terminal), delta("a\n"), ("final", FINAL)) == "a\n"


def test_an_answer_that_came_without_deltas_is_shown_once(screen: Screen) -> None:
    assert screen.show(PlainText(screen.terminal), ("final", FINAL)) == "whole\n"


def test_plain_text_keeps_bytes_as_they_are(screen: Screen) -> None:
    assert (
        screen.show(PlainText(screen.terminal), delta("\x1b[31mred\x1b[0m [bold]\t")) == "\x1b[31mred\x1b[0m [bold]\t\n"
    )


def test_a_failure_goes_to_stderr_and_the_text_so_far_to_stdout(screen: Screen) -> None:
    shown = screen.show(
        PlainText(screen.terminal), delta("half"), ("failed", {"code": "worker_lost", "message": "gone"})
    )
    assert shown == "half\n"
    assert screen.err.getvalue() == "failed: worker_lost: gone\n"


@pytest.mark.parametrize(
    ("reason", "says"), [("ahead", "no such item yet"), ("foreign", "another run"), ("new", "new")]
)
def test_a_reset_says_why_and_that_it_comes_again(screen: Screen, reason: str, says: str) -> None:
    screen.show(PlainText(screen.terminal), ("reset", {"reason": reason}))
    assert says in screen.err.getvalue()
    assert screen.err.getvalue().endswith(": from the start again\n")
    assert f"{says}: from the start again" in screen.show(Watched(screen.terminal), ("reset", {"reason": reason}))


def test_what_a_cancelled_run_says_is_said_once(screen: Screen) -> None:
    cancelled = ("cancelled", {"code": "cancelled", "message": "the run was cancelled"})
    screen.show(PlainText(screen.terminal), cancelled)
    assert screen.err.getvalue() == "cancelled: the run was cancelled\n"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_row_of_a_table_is_one_line_and_its_id_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.table({"run": "", "prompt": ""}, [["r" * 30, "漢字 and\nmore " * 20], ["s", "short"]])
    heading, first, second = re.sub("\x1b\\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert heading.split() == ["run", "prompt"]
    assert first.startswith("r" * 30 + "  漢字 and more")
    assert first.rstrip().endswith("…")
    assert cell_len(first) <= width
    assert second.split() == ["s", "short"]
    assert terminal.narrow == (width < 110)


def test_a_second_attempt_is_announced(screen: Screen) -> None:
    restarted = ("event", {"name": "run.restarted", "attempt": 2})
    assert screen.show(PlainText(screen.terminal), delta("old"), restarted, delta("new")) == "old\nnew\n"
    assert "started again" in screen.err.getvalue()


def test_a_gap_names_the_items_that_are_gone(screen: Screen) -> None:
    screen.show(PlainText(screen.terminal), ("gap", {"requested": 4, "earliest": 9, "latest": 12}))
    assert screen.err.getvalue() == "items 5 to 8 are gone: retention removed them\n"


def test_a_watched_run_shows_tools_usage_and_the_end(screen: Screen) -> None:
    shown = screen.show(
        Watched(screen.terminal),
        delta("Let me look."),
        ("tool.started", {"call_id": "c", "name": "terminal", "args": {"command": "date\n-u"}}),
        ("tool.completed", {"call_id": "c", "name": "terminal", "result": "Mon", "duration_ms": 1500}),
        ("tool.failed", {"call_id": "d", "name": "read", "error": "no such file"}),
        (
            "usage",
            {
                "input_tokens": 5,
                "output_tokens": 1,
                "total": {"input_tokens": 1200, "output_tokens": 34, "cache_read_tokens": 100},
            },
        ),
        ("final", FINAL),
    )
    assert shown.splitlines() == [
        "Let me look.",
        "▶ terminal  date -u",
        "✓ terminal (1.5 s)  Mon",
        "✗ read  no such file",
        "completed · 2.0 s · 1,200 tokens in (100 cached), 34 out",
    ]


def test_blank_lines_behind_a_tool_are_not_shown(screen: Screen) -> None:
    ended = ("tool.completed", {"call_id": "c", "name": "t", "result": "r"})
    assert (
        screen.show(Watched(screen.terminal), ended, delta("\n\n"), delta("\nso\n\nit is")) == "✓ t  r\nso\n\nit is\n"
    )


def test_an_answer_that_the_modes_hide_is_not_shown_at_the_end_either(screen: Screen) -> None:
    assert screen.show(Watched(screen.terminal, answer=False), ("final", FINAL)).startswith("completed")


def test_a_duration_is_shown_where_the_beginning_was(screen: Screen) -> None:
    renderer = Watched(screen.terminal)
    renderer.feed(Line(5, "message.delta", {"ts": 11.0, "text": "late"}))
    renderer.feed(Line(6, "final", FINAL))
    assert screen.out.getvalue() == "late\ncompleted\n"


def test_a_watched_run_cannot_reprogram_the_terminal(screen: Screen) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\x00ok"
    tool = {"call_id": "c", "name": evil, "args": {"x": evil}}
    shown = screen.show(
        Watched(screen.terminal), delta(evil), ("tool.started", tool), ("failed", {"code": "x", "message": evil})
    )
    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\x00"}


def test_markup_in_an_answer_is_text(screen: Screen) -> None:
    assert screen.show(Watched(screen.terminal), delta("[bold]x[/bold] :smile:")) == "[bold]x[/bold] :smile:\n"


def test_long_words_are_not_wrapped_or_cut(screen: Screen) -> None:
    assert screen.show(Watched(screen.terminal), delta("x" * 500)) == "x" * 500 + "\n"


def test_json_lines_hold_the_item_with_its_type_and_place(screen: Screen) -> None:
    shown = screen.show(
        JsonLines(screen.terminal, "r1"),
        delta("a"),
        ("gap", {"run_id": "r1", "requested": 0, "earliest": 2, "latest": 3}),
    )
    assert [json.loads(line) for line in shown.splitlines()] == [
        {"run_id": "r1", "seq": 1, "type": "message.delta", "ts": 10.0, "text": "a"},
        {"run_id": "r1", "type": "gap", "requested": 0, "earliest": 2, "latest": 3},
    ]


def test_no_item_of_any_shape_breaks_a_renderer(screen: Screen) -> None:
    from broker.items import TYPES

    for make in (PlainText, Watched, lambda t: JsonLines(t, "r")):
        renderer: Renderer = make(screen.terminal)
        for type_ in [*TYPES, "from.the_future", "reset", "gap"]:
            for fields in ({}, {"name": None, "text": None, "message": 5, "usage": [], "cost": "x", "ts": "?"}):
                renderer.feed(Line(1, type_, fields))
        renderer.close(None)


def test_a_warning_is_told_in_its_own_words(screen: Screen) -> None:
    message = "the price list does not know " + "m" * 100
    priced = {"ts": 1.0, "component_id": "agent", "name": "warning", "code": "price_unknown", "message": message}
    again = {"ts": 1.0, "name": "retry", "source_id": None, "attempt": 2, "because": "HTTP 429"}
    shown = screen.show(Watched(screen.terminal), ("event", priced), ("event", again))
    assert shown.splitlines() == [f"warning: {message}", "retry: attempt 2, because HTTP 429"]


@pytest.mark.parametrize(("value", "text"), [(0.0123, "12 ms"), (3.21, "3.2 s"), (75, "1:15 min"), (3725, "1:02:05 h")])
def test_durations(value: float, text: str) -> None:
    assert seconds(value) == text


def test_counts_that_are_not_known_are_not_shown() -> None:
    assert tokens(None) == tokens({}) == tokens({"input_tokens": None}) == ""
    assert tokens({"input_tokens": 1000, "output_tokens": None}) == "1,000 tokens in, 0 out"


def test_the_text_of_a_message_is_its_text_blocks() -> None:
    blocks = [{"type": "reasoning", "text": "no"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message_text({"content": blocks}) == "ab"
    assert message_text({"content": "bare"}) == "bare"
    assert message_text(None) == message_text({"content": 5}) == ""


def test_a_reader_that_left_is_told_of_every_write() -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    terminal = Terminal(Left(), Left())
    for say in (terminal.line, terminal.styled, terminal.warn, terminal.error):
        with pytest.raises(BrokenPipeError):
            say("a")


def test_printable_keeps_lines_and_tabs() -> None:
    assert printable("a\r\nb\tc\x7f\x85") == "a\nb\tc"
