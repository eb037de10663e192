"""The screen of ``hermes chat`` → items, in the ways of both builds."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import (
    Item,
    MessageDelta,
    ReasoningDelta,
    Summary,
    ToolCompleted,
    ToolFailed,
    ToolProgress,
    ToolStarted,
)
from tests.workers.drawn import SESSION, Drawn, events, reasoning, split_everywhere, text
from workers.hermes import screen
from workers.hermes.text import TextParser
from workers.hermes.verdict import judge

BOTH = pytest.mark.parametrize("indent", ["    ", ""], ids=["0.19.0", "0.22.2"])


def _parse(*pieces: bytes, succeeded: bool = True) -> tuple[TextParser, list[Item]]:
    parser = TextParser()
    items = [item for piece in pieces for item in parser.feed(piece)]
    return parser, items + parser.close(succeeded=succeeded)


def _tools(items: list[Item]) -> list[Item]:
    return [i for i in items if isinstance(i, (ToolStarted, ToolProgress, ToolCompleted, ToolFailed))]


def _rich(indent: str) -> Drawn:
    """Something of everything."""
    drawn = Drawn(prompt="say\n╭─ ⚕ Hermes ─╮\n    no", indent=indent, width=60)
    drawn.thought("let me see", "é漢").answer("Let me look. ").begins("terminal", "read_file")
    drawn.ends("$", "ls").ends("read", "a.txt", "1.2", "not found")
    drawn.add("⚠️  API call failed (attempt 1/3): Timeout", "   📝 Error: slow", "⏳ Retrying in 2.2s (attempt 1/3)...")
    return drawn.thought("so").answer("", "  code 😀", "", "end")


@BOTH
def test_an_answer_is_what_stands_in_its_frame(indent: str) -> None:
    parser, items = _parse(Drawn(indent=indent).answer("One", "", "  two  ", "three").bytes())
    assert text(items) == "One\n\n  two  \nthree"
    assert events(items, "hermes.session") == [{"hermes_session_id": SESSION}]
    assert (parser.session_id, parser.duration_ms, parser.answered) == (SESSION, 65_000.0, True)
    assert len(items) == 5, "a delta a line, and the session"
    assert judge(parser, 0, "") is None


@BOTH
def test_every_split_gives_the_same_items(indent: str) -> None:
    raw = _rich(indent).bytes()
    whole = _parse(raw)[1]
    assert {type(i) for i in whole} >= {ReasoningDelta, MessageDelta, ToolStarted, ToolCompleted, ToolFailed}
    for pieces in split_everywhere(raw):
        assert _parse(*pieces)[1] == whole


def test_a_line_is_given_as_soon_as_it_has_come() -> None:
    parser = TextParser()
    parser.feed(Drawn().head().bytes(closed=False))
    assert text(parser.feed(b"    first\r\n    sec")) == "first"
    assert text(parser.feed(b"ond\r\n")) == "\nsecond"


@BOTH
def test_rounds_follow_one_another_and_are_joined_as_in_other_modes(indent: str) -> None:
    drawn = Drawn(indent=indent).answer("Round one. ").begins("terminal").ends("$", "ls -l").answer("Round two.")
    _, items = _parse(drawn.bytes())
    assert [(i.round, i.text) for i in items if isinstance(i, MessageDelta)] == [
        (1, "Round one. "),
        (2, "\n\nRound two."),
    ]


def test_reasoning_belongs_to_the_round_of_the_answer_behind_it() -> None:
    drawn = (
        Drawn().thought("hm", "ah").answer("Look. ").begins("terminal").ends("$", "ls").thought("oh").answer("Done.")
    )
    _, items = _parse(drawn.bytes())
    assert [(i.round, i.text) for i in items if isinstance(i, ReasoningDelta)] == [(1, "hm"), (1, "\nah"), (2, "oh")]
    assert [i.round for i in items if isinstance(i, MessageDelta)] == [1, 2]


def test_reasoning_that_was_left_open_ends_where_the_answer_begins() -> None:
    drawn = Drawn().add("┌─ Reasoning " + "─" * 86 + "┐", "hm").answer("Yes.")
    _, items = _parse(drawn.bytes())
    assert (reasoning(items).strip(), text(items)) == ("hm", "Yes.")


# The echo of the prompt.


@BOTH
def test_a_prompt_that_looks_like_a_screen_is_no_answer(indent: str) -> None:
    mimic = Drawn(indent=indent).answer("not said by the model").begins("terminal").out.replace("\r\n", "\n")
    prompt = f"{mimic}\n  hermes --resume 20000101_000000_aaaaaa\nInitializing agent...\n"
    _, items = _parse(Drawn(prompt=prompt, indent=indent).answer("real").bytes())
    assert text(items) == "real"
    assert not _tools(items)
    assert events(items, "hermes.session") == [{"hermes_session_id": SESSION}]


# The model's text inside a frame.

TEXTS = [
    "╭─ ⚕ Hermes ─────────────────────────────╮",
    "╰────────────────────────────────────────╯",
    " ─  Hermes  ───────────────────────────── ",
    "  ┊ 💻 preparing terminal…",
    "┊ x",
    "Resume this session with:",
    "  hermes --resume 20000101_000000_bbbbbb",
    "Session:        20000101_000000_bbbbbb",
    "⏱ Timeout — denying command",
    "⚠️  Reached maximum iterations (1). Requesting summary...",
    "❌ no",
    '{"type": "message.delta", "delta": "x"}',
    "─" * 40,
    "    indented",
]


@BOTH
def test_text_that_looks_like_the_screen_stays_text(indent: str) -> None:
    parser, items = _parse(Drawn(indent=indent).answer("first", *TEXTS, "last").bytes())
    assert text(items) == "\n".join(["first", *TEXTS, "last"])
    assert [type(i) for i in items if not isinstance(i, MessageDelta)] == [type(items[-1])]
    assert judge(parser, 0, "") is None


# Tools.


def test_the_lines_of_a_tool_are_its_start_and_its_end() -> None:
    drawn = Drawn().answer("Look. ").begins("terminal").ends("$", "ls -l + 1 command", "1.2").answer("Done.")
    assert _tools(_parse(drawn.bytes())[1]) == [
        ToolStarted(call_id="hermes_call_1", name="terminal", component_id="tool:terminal"),
        ToolProgress(
            call_id="hermes_call_1", name="terminal", preview="ls -l + 1 command", component_id="tool:terminal"
        ),
        ToolCompleted(call_id="hermes_call_1", name="terminal", duration_ms=1200.0, component_id="tool:terminal"),
    ]


def test_an_end_is_that_of_the_oldest_open_call_of_its_name() -> None:
    drawn = Drawn().begins("terminal", "read_file", "terminal", "my_own_tool")
    drawn.ends("read", "a").ends("$", "1").ends("my_own_to", "x").ends("$", "2", "0.0", "exit 3")
    ends = [i for i in _tools(_parse(drawn.bytes())[1]) if isinstance(i, (ToolCompleted, ToolFailed))]
    assert [(i.call_id, i.name) for i in ends] == [
        ("hermes_call_2", "read_file"),
        ("hermes_call_1", "terminal"),
        ("hermes_call_4", "my_own_tool"),
        ("hermes_call_3", "terminal"),
    ]
    assert isinstance(ends[-1], ToolFailed)
    assert ends[-1].error == "exit 3"


def test_calls_of_one_name_that_are_announced_together_each_have_a_start() -> None:
    """0.22.2 prints the first line once for several calls."""
    drawn = Drawn(indent="").begins("terminal").ends("$", "one").ends("$", "two")
    kinds = [(type(i), i.call_id) for i in _tools(_parse(drawn.bytes())[1])]  # type: ignore[attr-defined]
    assert kinds == [
        (ToolStarted, "hermes_call_1"),
        (ToolProgress, "hermes_call_1"),
        (ToolCompleted, "hermes_call_1"),
        (ToolStarted, "hermes_call_2"),
        (ToolCompleted, "hermes_call_2"),
    ]


def test_a_build_without_its_catalogs_tells_the_names_at_the_end() -> None:
    drawn = Drawn(indent="").add("  ┊ cli.stream.tool_preparing", "  ┊ cli.stream.tool_preparing")
    drawn.add("  ┊ 💻 display.cute.verb.terminal display.preview.shell_plus_one  1.9s")
    drawn.add("  ┊ 📖 display.cute.verb.read hostname  0.1sdisplay.failure.generic")
    tools = _tools(_parse(drawn.bytes())[1])
    assert [type(i) for i in tools] == [ToolStarted, ToolStarted, ToolCompleted, ToolProgress, ToolFailed]
    assert [i.name for i in tools] == ["unknown", "unknown", "terminal", "read_file", "read_file"]  # type: ignore[attr-defined]
    assert isinstance(tools[-1], ToolFailed)
    assert "display" not in tools[-1].error


def test_a_call_whose_end_is_not_shown_stays_open_and_takes_no_others_end() -> None:
    drawn = Drawn().begins("terminal").answer("Now. ").begins("terminal").ends("$", "second").answer("Done.")
    tools = _tools(_parse(drawn.bytes())[1])
    assert [i.call_id for i in tools if isinstance(i, ToolStarted)] == ["hermes_call_1", "hermes_call_2"]
    assert [i.call_id for i in tools if isinstance(i, (ToolCompleted, ToolFailed))] == ["hermes_call_2"]


def test_where_hermes_broke_off_the_calls_of_its_round_failed() -> None:
    drawn = Drawn().begins("terminal").answer("Now. ").begins("read_file")
    tools = _tools(_parse(drawn.bytes(closed=False), succeeded=False)[1])
    assert [(type(i), i.call_id) for i in tools[2:]] == [(ToolFailed, "hermes_call_2")]  # type: ignore[attr-defined]


def test_of_the_calls_that_are_open_at_the_break_only_those_of_the_last_round_failed() -> None:
    drawn = Drawn().begins("terminal").answer("Now. ").begins("read_file", "write_file").ends("read", "a")
    tools = _tools(_parse(drawn.bytes(closed=False), succeeded=False)[1])
    assert [(i.call_id, i.name) for i in tools if isinstance(i, ToolFailed)] == [("hermes_call_3", "write_file")]


def test_what_was_begun_when_hermes_broke_off_is_given() -> None:
    diff = Drawn().begins("write_file").ends("write", "a.txt").add("  ┊ review diff", "@@ -0,0 @@", "+one")
    assert events(_parse(diff.bytes(closed=False), succeeded=False)[1], "hermes.diff")
    notice = Drawn().add("something of which nobody knows")
    assert events(_parse(notice.bytes(closed=False), succeeded=False)[1], "warning")
    panel = Drawn().panel("One", "two").bytes(closed=False)
    assert text(_parse(panel[: panel.rindex(b"two") + 3])[1]) == "One\ntwo"


def test_a_tool_line_in_an_open_frame_changes_no_round() -> None:
    """With reasoning shown, 0.19.0 draws the frame, then the tool, then the text that came before it."""
    drawn = Drawn().thought("hm").head().begins("terminal").add("    Look. ").foot().ends("$", "ls").answer("Done.")
    _, items = _parse(drawn.bytes())
    assert [(i.round, i.text) for i in items if isinstance(i, MessageDelta)] == [(1, "Look. "), (2, "\n\nDone.")]


def test_a_change_to_a_file_is_an_event() -> None:
    drawn = (
        Drawn().begins("write_file").ends("write", "a.txt").add("  ┊ review diff", "a/a.txt → b/a.txt", "@@ -0,0 @@")
    )
    _, items = _parse(drawn.add("+one", " two").answer("Done.").bytes())
    assert events(items, "hermes.diff") == [{"diff": "a/a.txt → b/a.txt\n@@ -0,0 @@\n+one\n two"}]
    assert not events(items, "warning")
    assert text(items) == "Done."
    for end in ("  ┊ 💻 $         ls  0.4s", "", "⚠️ something else"):
        drawn = Drawn().add("  ┊ review diff", "+one", end, "+no more of it")
        assert events(_parse(drawn.bytes(closed=False))[1], "hermes.diff") == [{"diff": "+one"}]


# Notices.


def test_a_notice_is_an_event_with_its_indented_lines() -> None:
    _, items = _parse(_rich("    ").bytes())
    assert events(items, "warning") == [
        {"code": "model_error", "message": "⚠️  API call failed (attempt 1/3): Timeout\n📝 Error: slow"}
    ]
    assert events(items, "retry") == [
        {"message": "⏳ Retrying in 2.2s (attempt 1/3)...", "wait_s": 2.2, "attempt": 1, "of": 3}
    ]


def test_a_notice_that_nothing_can_follow_is_given_at_once() -> None:
    parser = TextParser()
    parser.feed(Drawn().bytes(closed=False))
    assert events(parser.feed("⏳ Retrying in 18s (cycle 1/5)\r\n".encode()), "retry")
    assert events(parser.feed("  ⏱ Timeout — denying command\r\n".encode()), "warning")
    assert parser.feed("❌ API failed after 3 retries\r\n".encode()) == []
    assert events(parser.feed("   💀 Final error: x\r\n\r\n".encode()), "warning")


def test_a_compression_of_the_context_is_a_summary() -> None:
    _, items = _parse(Drawn().add("🗜️ Compressed 30 → 4 messages, retrying...").answer("Yes.").bytes())
    assert [item.text for item in items if isinstance(item, Summary)] == ["🗜️ Compressed 30 → 4 messages, retrying..."]


def test_notices_in_an_open_frame_are_no_text() -> None:
    drawn = Drawn().head().add("⚠️  Stream interrupted by network error", "    a", "⚡ Interrupted during API call.")
    _, items = _parse(drawn.add("    b").foot().bytes())
    assert text(items) == "a\nb"
    assert [e["code"] for e in events(items, "warning")] == ["stream_interrupted", "interrupted"]


def test_a_frame_of_another_skin_tells_its_indent_by_its_first_line() -> None:
    for indent in ("    ", ""):
        drawn = Drawn(indent=indent)
        drawn.label = " ⚔ Ares "
        assert text(_parse(drawn.answer("one", "  two").bytes())[1]) == "one\n  two"


def test_a_session_that_goes_on_is_known_at_once_and_its_rotation_at_the_end() -> None:
    drawn = Drawn().add("↻ Resumed session 20300101_000000_ffffff (1 user message, 2 total messages)").answer("Yes.")
    parser, items = _parse(drawn.bytes())
    first, second = events(items, "hermes.session")
    assert first == {"hermes_session_id": "20300101_000000_ffffff"}
    assert second == {"hermes_session_id": SESSION, "rotated_from": "20300101_000000_ffffff"}
    assert parser.session_id == SESSION


# What did not stream.


@BOTH
def test_a_panel_is_an_answer_that_did_not_stream(indent: str) -> None:
    drawn = Drawn(indent=indent).ends("$", "ls").panel("One", "", "  two")
    parser, items = _parse(drawn.bytes())
    assert text(items) == "One\n\n  two"
    assert judge(parser, 0, "") is None


@BOTH
def test_a_panel_behind_an_error_is_the_error_though_the_exit_code_is_0(indent: str) -> None:
    drawn = Drawn(indent=indent).answer("Some text, ")
    drawn.add("❌ Non-retryable error (HTTP 401): bad key").panel("HTTP 401: bad key")
    parser, items = _parse(drawn.bytes())
    assert text(items) == "Some text, "
    failure = judge(parser, 0, "")
    assert failure is not None
    assert (failure.code, failure.message, failure.retryable) == ("provider_auth", "HTTP 401: bad key", False)


def test_a_panel_is_the_error_where_the_exit_code_says_so() -> None:
    parser, items = _parse(
        Drawn(indent="").panel("It is broken", "Provider said: HTTP 500: x").bytes(), succeeded=False
    )
    failure = judge(parser, 1, "")
    assert text(items) == ""
    assert failure is not None
    assert (failure.code, failure.retryable) == ("provider_error", True)


def test_an_answer_behind_an_error_that_was_overcome_is_an_answer() -> None:
    drawn = Drawn().add("❌ Rate limited after 3 retries").answer("After all. ").begins("terminal").ends("$", "l")
    parser, items = _parse(drawn.panel("Done.").bytes())
    assert text(items) == "After all. \n\nDone."
    assert judge(parser, 0, "") is None


@pytest.mark.parametrize(
    "lines",
    [
        ("⚠️ No reply: the model returned empty content after retries.",),
        ("explainer.no_reply_prefixexplainer.empty_response",),
    ],
)
def test_a_notice_that_there_is_no_reply(lines: tuple[str, ...]) -> None:
    drawn = Drawn().add("❌ Model returned no content after all retries.").panel(*lines)
    parser, items = _parse(drawn.bytes())
    failure = judge(parser, 0, "")
    assert text(items) == ""
    assert failure is not None
    assert failure.code == "empty_reply"


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_turn_limit_keeps_the_closing_words(exit_code: int) -> None:
    drawn = Drawn().answer("Look. ").begins("terminal").ends("$", "ls")
    drawn.add("⚠️  Reached maximum iterations (1). Requesting summary...")
    drawn.panel("So far I looked.", "", "⚠️ No reply: the maximum tool-iteration limit was reached.")
    parser, items = _parse(drawn.bytes(), succeeded=exit_code == 0)
    failure = judge(parser, exit_code, "")
    assert text(items) == "Look. \n\nSo far I looked."
    assert failure is not None
    assert failure.code == "turn_limit"


def test_a_panel_that_says_again_what_streamed_is_not_said_twice() -> None:
    _, items = _parse(Drawn().answer("One two", "three").panel("One two three").bytes())
    assert text(items) == "One two\nthree"


@pytest.mark.parametrize("shown", ["panel", "notice"])
def test_an_answer_that_came_with_the_last_tools_stands(shown: str) -> None:
    """The model answers, notes something down, and then says nothing more."""
    drawn = Drawn().answer("The answer", "is yes.").begins("memory").ends("memory", "+user")
    if shown == "panel":
        drawn.panel("The answer", "is yes.")
    else:
        drawn.add("↻ Empty response after tool calls — using earlier content as final answer")
    parser, items = _parse(drawn.bytes())
    assert text(items) == "The answer\nis yes."
    assert judge(parser, 0, "") is None


def test_text_ahead_of_tools_alone_is_no_answer() -> None:
    parser, _ = _parse(Drawn().answer("Let me see. ").begins("terminal").ends("$", "ls").bytes())
    failure = judge(parser, 0, "")
    assert failure is not None
    assert failure.code == "empty_reply"


def test_a_turn_limit_behind_which_hermes_goes_on_is_none() -> None:
    drawn = Drawn().add("⚠️  Reached maximum iterations (1). Requesting summary...").begins("terminal").ends("$", "l")
    parser, _ = _parse(drawn.answer("Done.").bytes())
    assert judge(parser, 0, "") is None


def test_an_unknown_session_ends_with_exit_code_0() -> None:
    drawn = Drawn().add("Session not found: 20200101_000000_abcdef", "Use a session ID from a previous CLI run.")
    parser, _ = _parse(drawn.bytes(closed=False))
    failure = judge(parser, 0, "")
    assert failure is not None
    assert failure.code == "hermes_session_not_found"
    assert "20200101_000000_abcdef" in failure.message


def test_a_traceback_is_no_answer() -> None:
    parser, items = _parse(Drawn().head().add("⚡ Interrupted during API call.").bytes(closed=False), succeeded=False)
    failure = judge(parser, -2, "Traceback (most recent call last):\nKeyboardInterrupt\n")
    assert text(items) == ""
    assert failure is not None
    assert failure.code == "interrupted"


# Width.


def test_lines_that_fill_the_width_are_said_once_to_be_as_printed() -> None:
    drawn = Drawn(width=60).answer("x" * 50, "y" * 50, "z" * 50)
    _, items = _parse(drawn.bytes())
    assert [e["code"] for e in events(items, "warning")] == ["wrapped_text"]
    assert text(items) == f"{'x' * 50}\n{'y' * 50}\n{'z' * 50}"


@pytest.mark.parametrize(
    ("width", "indent", "lines"),
    [(2_000, "    ", ["x" * 1000, "y" * 900]), (60, "", ["x" * 50, "y" * 50]), (60, "    ", ["x" * 46, "y " * 20])],
)
def test_lines_with_room_for_the_next_word_are_as_the_model_wrote_them(
    width: int, indent: str, lines: list[str]
) -> None:
    _, items = _parse(Drawn(width=width, indent=indent).answer(*lines).bytes())
    assert not events(items, "warning")


# Other outputs of the command.


def test_records_are_read_as_records() -> None:
    records = [
        {"type": "system", "subtype": "init", "model": "m", "session_id": "s1"},
        {"type": "text", "text": "Hi"},
        {"type": "result", "session_id": "s1", "exit_code": 0, "text": "Hi"},
    ]
    raw = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    for pieces in split_everywhere(raw):
        parser, items = _parse(*pieces)
        assert text(items) == "Hi"
        assert (parser.session_id, parser.model, parser.structured) == ("s1", "m", True)
        assert judge(parser, 0, "") is None


def test_the_seed_dialect() -> None:
    parser, items = _parse(b'{"type": "message.delta", "delta": "He"}\n{"type": "message.delta", "delta": "llo"}\n')
    assert text(items) == "Hello"
    assert judge(parser, 0, "") is None


def test_plain_lines_are_text_where_the_command_succeeded_and_guidance_where_it_did_not() -> None:
    raw = b"It looks like Hermes isn't configured yet\n\n  Run:  hermes setup"
    assert text(_parse(raw)[1]) == raw.decode()
    parser, items = _parse(raw, succeeded=False)
    failure = judge(parser, 1, "")
    assert items == []
    assert failure is not None
    assert failure.code == "not_configured"


def test_a_screen_whose_lines_end_with_lf_is_read_at_the_end() -> None:
    raw = Drawn(prompt="say Initializing agent...").answer("One", "two").bytes().replace(b"\r\n", b"\n")
    assert text(_parse(raw)[1]) == "One\ntwo"


# Bytes.


def test_invalid_utf8_is_replaced_and_nothing_else_is_lost() -> None:
    raw = Drawn().answer("aXb").bytes().replace(b"X", b"\xff\xe2\x82")
    assert text(_parse(raw)[1]) == "a\ufffd\ufffdb"


@BOTH
def test_a_line_of_five_megabytes_is_one_delta(indent: str) -> None:
    raw = Drawn(indent=indent).answer("before", "y" * (5 << 20), "after").bytes()
    _, items = _parse(*(raw[i : i + 65_536] for i in range(0, len(raw), 65_536)))
    assert text(items) == f"before\n{'y' * (5 << 20)}\nafter"


def test_a_line_without_end_is_bounded_and_said_so() -> None:
    parser = TextParser(line_max=1 << 20)
    parser.feed(Drawn().head().add("    kept").bytes(closed=False))
    tracemalloc.start()
    for _ in range(640):
        parser.feed(b"x" * 65_536)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    items = parser.close(succeeded=False)
    assert [e["code"] for e in events(items, "warning")] == ["line_too_long"]
    assert peak < 4 << 20


def test_a_panel_is_bounded_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_PANEL_MAX", 11)
    _, items = _parse(Drawn(indent="").panel("abc", "def", "ghi", "jkl").bytes())
    assert text(items) == "abc\ndef"
    assert [e["code"] for e in events(items, "warning")] == ["output_too_long"]


def test_output_without_a_screen_is_not_held_for_ever() -> None:
    parser = TextParser()
    items = [item for _ in range(40) for item in parser.feed(b"plain words\n" * 4_000)]
    assert text(items + parser.close()) == "plain words\n" * 160_000
    assert items, "given before the end"


_lines = st.sampled_from(
    [
        *("    text", "text", "", "    ", "⚠️ note", "   more", "❌ no", "  ┊ 💻 preparing terminal…", "  ┊ x"),
        *("  ┊ 💻 $         ls  0.4s", "  ┊ 💻 $ ls  0.4s [exit 1]", "  ┊ review diff", "+x", "  ┊ 💬 said"),
        *("╭─ ⚕ Hermes " + "─" * 27 + "╮", "╭─ ☤ Hermes " + "─" * 27 + "╮", "╰" + "─" * 38 + "╯"),
        *("┌─ Reasoning " + "─" * 26 + "┐", "└" + "─" * 38 + "┘", " ─  ⚕ Hermes  " + "─" * 25 + " "),
        *(" " + "─" * 38 + " ", "─" * 40, "  hermes --resume 20300102_030405_abc123", "Duration:       5s"),
        *("⚠️  Reached maximum iterations (1).", "⚠️ No reply: x", "Session not found: x", '{"type": "x"}'),
    ]
)


@given(st.lists(st.tuples(_lines, st.sampled_from(["\n", "\r\n"])), max_size=30), st.lists(st.integers(0, 900)))
def test_any_screen_and_any_split_give_the_same_items(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    raw = "".join(line + end for line, end in lines).encode()
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(edges)]
    for succeeded in (True, False):
        assert _parse(*pieces, succeeded=succeeded)[1] == _parse(raw, succeeded=succeeded)[1]


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes_and_any_split_give_the_same_items(raw: bytes, cut: int) -> None:
    head = Drawn().head().bytes(closed=False)
    for begun in (b"", head):
        assert _parse(begun + raw[:cut], raw[cut:])[1] == _parse(begun + raw)[1]


@given(st.lists(_lines, max_size=30))
def test_every_end_of_a_tool_has_a_start_and_there_is_one_of_each(lines: list[str]) -> None:
    _, items = _parse(Drawn().add(*lines).bytes(closed=False), succeeded=False)
    open_calls, seen = set(), set()
    for item in _tools(items):
        call_id = item.call_id  # type: ignore[attr-defined]
        if isinstance(item, ToolStarted):
            assert call_id not in seen
            open_calls.add(call_id)
            seen.add(call_id)
        else:
            assert call_id in open_calls
        if isinstance(item, (ToolCompleted, ToolFailed)):
            open_calls.remove(call_id)
