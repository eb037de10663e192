"""What docs/tasks.md says shows each point is there: the file, the test in it, and whether it is long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ROWS = (ROOT / "docs" / "tasks.md").read_text().partition("\n## What shows it\n")[2].splitlines()
ROWS = [tuple(cell.strip() for cell in row.strip("|").split(" | ")) for row in _ROWS if row.startswith("| ")][1:]


def functions(file: Path) -> dict[str, bool]:
    """The functions of a test file, and whether they are long."""
    found = [
        node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {node.name: any(".long" in ast.unparse(mark) for mark in _marks(node)) for node in found}


def _marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Its decorators; what is asked of each build of Hermes is long."""
    return [
        ast.parse("pytest.mark.long", mode="eval").body if "BUILDS" in ast.unparse(d) else d
        for d in node.decorator_list
    ]


def test_every_point_of_the_list_is_there() -> None:
    assert len(ROWS) > 20
    named = {file for _, tests in ROWS for file in re.findall(r"`(tests/\S+\.py)`", tests)}
    kept = {str(file.relative_to(ROOT)) for file in (ROOT / "tests" / "tasks").glob("test_*.py")}
    assert kept - named == {"tests/tasks/test_verification.py"}


@pytest.mark.parametrize(("point", "tests"), ROWS, ids=[point[:50] for point, _ in ROWS])
def test_what_shows_it_exists(point: str, tests: str) -> None:
    parts = re.findall(r"`(tests/\S+\.py)`|`(\w+)`( \(long\))?", tests)
    assert parts[0][0], f"{point}: names no file"
    known: dict[str, bool] = {}
    for file, name, long in parts:
        if file:
            known = functions(ROOT / file)
            assert any(test.startswith("test_") for test in known), file
        elif name.startswith("test_"):
            assert name in known, f"{point}: there is no {name}"
            assert known[name] == bool(long), f"{point}: {name} is long: {known[name]}"
        else:
            assert name in known, f"{point}: there is no {name}"
