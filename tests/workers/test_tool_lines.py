"""The lines about tools, one by one."""

from __future__ import annotations

import pytest

from workers.hermes.tool_lines import UNKNOWN, Began, Ended, Said, ToolLine, is_diff, tool_line


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("  ┊ 💻 preparing terminal…", Began("terminal")),
        ("  ┊ ✍️ preparing write_file…", Began("write_file")),
        ("  ┊ cli.stream.tool_preparing", Began(UNKNOWN)),
        ("  ┊ 💻 $         ls -l | wc + 1 command  0.4s", Ended("terminal", "ls -l | wc + 1 command", 400.0, None)),
        ("  ┊ 📖 read      hostname  12.1s [not found]", Ended("read_file", "hostname", 12_100.0, "not found")),
        ("  ┊ 🔎 grep      a  b  0.0s", Ended("search_files", "a  b", 0.0, None)),
        ("  ┊ ◀️  back      0.2s", Ended("browser_back", "", 200.0, None)),
        ("  ╎ ⚡ my_own_to x  0.3s", Ended("my_own_to", "x", 300.0, None)),
        ("  ┊ 💻 $         rm x  3.6s [BLOCKED: [no]]", Ended("terminal", "rm x", 3_600.0, "BLOCKED: [no]")),
        ("  ┊ 💻 display.cute.verb.terminal exit  0.1sdisplay.failure.exit", Ended("terminal", "exit", 100.0, "")),
        ("  ┊ 💬 Let me see.", Said("Let me see.")),
        ("  ┊ review diff", Said(None)),
    ],
)  # fmt: skip
def test_what_a_line_tells(line: str, told: ToolLine) -> None:
    assert tool_line(line) == told


@pytest.mark.parametrize("line", ["┊ x", "    ┊ 💻 preparing terminal…", "text", "", "  | a", "  ┊ " + "x" * 20_000])
def test_other_lines_are_none_of_them(line: str) -> None:
    assert tool_line(line) is None


def test_a_line_of_the_kind_that_is_not_known_is_given_as_it_stands() -> None:
    assert tool_line("  ┊ ◇ Reference 1/2 — x") == "◇ Reference 1/2 — x"


def test_the_lines_of_a_change() -> None:
    assert all(map(is_diff, ["a/x → b/x", "@@ -1 +1,2 @@", "+new", "-old", " same", "… omitted 3 lines"]))
    assert not any(map(is_diff, ["", "⚠️ note", "╭─ x ─╮", "  ┊ 💻 preparing terminal…"]))
