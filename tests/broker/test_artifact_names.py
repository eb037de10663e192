"""Names of files: every trick that leads elsewhere, or looks like something else, is refused by its reason."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.artifact_names import NAME_MAX, PATH_MAX, fault_of, is_showable, media_type, shown


@pytest.mark.parametrize(
    "name", ["report.pdf", "Résumé (2).txt", "数据.csv", "naïve.md", "a", "x" * NAME_MAX, "a..b", "½.txt", "🙂.png"]
)
def test_ordinary_names_are_taken(name: str) -> None:
    assert fault_of(name) == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "empty"),
        (".", "begins"),
        ("..", "begins"),
        ("../x", "separator"),
        ("/etc/passwd", "separator"),
        ("a/b", "separator"),
        ("a\\b", "separator"),
        ("..\\x", "separator"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x1b[31m", "control"),
        ("a\x7f", "control"),
        ("a\x85b", "control"),
        ("exe\u202egpj.txt", "seen"),
        ("a\u200bb", "seen"),
        ("a\u2028b", "seen"),
        ("\ufeffa", "seen"),
        ("a\ud800", "Unicode"),
        ("e\u0301.txt", "NFC"),
        ("a\uff0fb", "separator"),  # fullwidth solidus
        ("\u2100", "separator"),  # a/c
        ("\u2025", "begins"),  # two dot leader: “..”
        ("\uff0e\uff0e", "begins"),
        (".bashrc", "begins"),
        ("-rf", "begins"),
        (" a", "blank"),
        ("a ", "blank"),
        ("a.", "dot"),
        ("a:b", ":"),
        ("a.txt:stream", ":"),
        ("a?", r"\?"),
        ("a*", r"\*"),
        ("a|b", r"\|"),
        ("<a>", "<"),
        ("CON", "device"),
        ("nul.txt", "device"),
        ("COM1.tar.gz", "device"),
        ("lpt\u00b9", "device"),
        ("Aux .txt", "device"),
        ("AGENTS.md", "instructions"),
        ("claude.MD", "instructions"),
        ("x" * (NAME_MAX + 1), str(NAME_MAX)),
        ("é" * (NAME_MAX // 2 + 1), "bytes"),
    ],
)
def test_tricks_are_refused_and_told(name: str, says: str) -> None:
    assert re.search(says, fault_of(name)), fault_of(name)


@given(st.text(alphabet=st.characters(), max_size=40))
def test_a_name_that_is_taken_is_one_file_of_its_directory(name: str) -> None:
    if fault_of(name):
        return
    assert os.path.basename(name) == name
    assert os.path.normpath(name) == name
    assert Path("/workspace", name).parent == Path("/workspace")
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in name)
    assert len(name.encode()) <= NAME_MAX


@given(st.binary(max_size=60))
def test_any_name_can_be_shown(raw: bytes) -> None:
    """As a file system gives it: bytes that are no UTF-8 come as surrogates."""
    text = shown(raw.decode("utf-8", "surrogateescape"))
    assert bool(text.encode()) == bool(raw)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


def test_a_long_name_is_cut_when_it_is_shown() -> None:
    assert len(shown("x" * 5_000)) == 200


def test_what_a_run_may_call_its_files() -> None:
    assert is_showable("out/plots/figure 1.png")
    assert is_showable("x" * PATH_MAX)
    assert not is_showable("x" * (PATH_MAX + 1))
    for name in ("a\nb", "a\\b", "exe\u202egpj", "bad\udcff", "a\x1b"):
        assert not is_showable(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text/plain"),
        ("dir.csv/a.PNG", "image/png"),
        ("page.html", "text/html"),
        ("a.tar.gz", "application/gzip"),
        ("a.csv.br", "application/octet-stream"),
        ("no ending", "application/octet-stream"),
        ("a.unheard-of", "application/octet-stream"),
    ],
)
def test_the_type_is_what_the_name_says(name: str, kind: str) -> None:
    assert media_type(name) == kind
