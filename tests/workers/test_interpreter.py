"""Which Python a Hermes is run by, from scripts as installers write them."""

from __future__ import annotations

import os
import subprocess
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
        assert interpreter(_write(tmp_path / "hermes", f"{first}\n{BODY}"), {}) == [str(link)]


def test_it_is_looked_up_where_env_is_asked(tmp_path: Path, python: Path) -> None:
    environ = {"PATH": f"{tmp_path}:{python.parent}"}
    for first in ("#!/usr/bin/env python3", "#!/usr/bin/env -S python3 -s"):
        _write(tmp_path / "hermes", f"{first}\n{BODY}")
        assert interpreter("hermes", environ) == [str(python)]
    with pytest.raises(Unavailable):
        interpreter("hermes", {"PATH": str(tmp_path)})


def test_a_path_that_is_too_long_for_a_first_line(tmp_path: Path, python: Path) -> None:
    assert interpreter(_write(tmp_path / "hermes", PIP_LONG.format(python=python)), {}) == [str(python)]


@pytest.mark.parametrize(
    "script",
    [
        '#!/usr/bin/env bash\nunset PYTHONPATH\nexport A=1\nexec "{target}" "$@"\n',
        "#!/bin/sh -e\n# A is one\nexport A=1\nexec '{target}' \"$@\"\n",
        '#! /bin/bash\nexport A=$((${{0##*/w}} + 1))\nexec -a "$0" "{target}"  "$@"\nexport A=2\n',
    ],
)
def test_a_shell_script_stands_for_what_it_calls(tmp_path: Path, python: Path, script: str) -> None:
    """And its Python is run as that script would run it."""
    real = _write(tmp_path / "real hermes", PIP_LONG.format(python=python))
    for target in (real, python):
        command = interpreter(_write(tmp_path / "w0", script.format(target=target)), {})
        assert command[-1] == str(python)
        told = "import os, sys; print(os.environ.get('A'), 'PYTHONPATH' in os.environ, sys.argv[1:])"
        env = {"PATH": os.environ["PATH"], **({"PYTHONPATH": "x"} if "unset" in script else {})}
        ran = subprocess.run(
            [*command, "-c", told, "a b", "$HOME"], env=env, capture_output=True, text=True, check=True
        )
        assert ran.stdout == "1 False ['a b', '$HOME']\n"


def test_a_script_that_only_calls_needs_no_shell(tmp_path: Path, python: Path) -> None:
    script = _write(tmp_path / "hermes", f'#!/bin/sh\n# Hermes\n\nexec "{python}" -I -m hermes_cli.main "$@"\n')
    assert interpreter(script, {}) == [str(python)]


@pytest.mark.parametrize("rest", ["--profile work", "-m hermes_cli.main --profile work", "-m hermes_cli.main -p work"])
def test_a_script_with_arguments_of_its_own_is_not_bypassed(tmp_path: Path, python: Path, rest: str) -> None:
    target = python if "-m" in rest else _write(tmp_path / "real", PIP_LONG.format(python=python))
    with pytest.raises(Unavailable, match="HERMES_PYTHON"):
        interpreter(_write(tmp_path / "hermes", f'#!/bin/sh\nexec "{target}" {rest} "$@"\n'), {})


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
