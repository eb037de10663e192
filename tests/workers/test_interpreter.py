"""Which Python a Hermes is run by, from scripts as installers write them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workers.hermes.command import Unavailable
from workers.hermes.interpreter import interpreter
from workers.hermes.process import NotStarted

PIP_LONG = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys
"""
BODY = "import sys\nfrom hermes_cli.main import main\n"


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python whose path has a space. A link, as in an environment: it must not be resolved."""
    (tmp_path / "an env").mkdir()
    python = tmp_path / "an env" / "python3"
    python.symlink_to(sys.executable)
    return python


def test_the_first_line_names_it(tmp_path: Path) -> None:
    link = tmp_path / "python3.11"
    link.symlink_to(sys.executable)
    for first in (f"#!{link}", f"#! {link} -sE", f"#!{link}\r"):
        assert interpreter(_write(tmp_path / "hermes", f"{first}\n{BODY}"), {}) == str(link)


def test_it_is_looked_up_where_env_is_asked(tmp_path: Path, python: Path) -> None:
    environ = {"PATH": f"{tmp_path}:{python.parent}"}
    for first in ("#!/usr/bin/env python3", "#!/usr/bin/env -S python3 -s"):
        _write(tmp_path / "hermes", f"{first}\n{BODY}")
        assert interpreter("hermes", environ) == str(python)
    with pytest.raises(Unavailable):
        interpreter("hermes", {"PATH": str(tmp_path)})


def test_a_path_that_is_too_long_for_a_first_line(tmp_path: Path, python: Path) -> None:
    assert interpreter(_write(tmp_path / "hermes", PIP_LONG.format(python=python)), {}) == str(python)


@pytest.mark.parametrize(
    "script",
    [
        '#!/usr/bin/env bash\nunset PYTHONPATH\nexec "{target}" "$@"\n',
        "#!/bin/sh -e\nexec '{target}' \"$@\"\n",
        '#! /bin/bash\nexport A=1\nexec -a "$0" "{target}"  "$@"\n',
    ],
)
def test_a_shell_script_stands_for_what_it_calls(tmp_path: Path, python: Path, script: str) -> None:
    real = _write(tmp_path / "real hermes", PIP_LONG.format(python=python))
    assert interpreter(_write(tmp_path / "hermes", script.format(target=real)), {}) == str(python)
    assert interpreter(_write(tmp_path / "direct", script.format(target=python)), {}) == str(python)


def test_scripts_that_call_each_other_come_to_an_end(tmp_path: Path) -> None:
    path = tmp_path / "hermes"
    with pytest.raises(Unavailable):
        interpreter(_write(path, f'#!/bin/sh\nexec "{path}" "$@"\n'), {})


@pytest.mark.parametrize(
    "text", ["\x7fELF\x02", "", "#!\n", "#!/bin/sh\necho hello\n", "#!/nowhere/python3\n", "#!/bin/cat\n"]
)
def test_programs_that_tell_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(Unavailable, match="HERMES_PYTHON"):
        interpreter(_write(tmp_path / "hermes", text), {"PATH": "/bin"})


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotStarted) as missing:
        interpreter("hermes", {"PATH": str(tmp_path)})
    assert missing.value.missing
