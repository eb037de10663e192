"""The table of the cases names tests that exist, and every test of a case stands in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import cases

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", cases.__doc__ or "", re.MULTILINE)


@pytest.mark.parametrize(("case", "held_by"), ROWS, ids=[case for case, _ in ROWS])
def test_the_table_names_tests_that_exist(case: str, held_by: str):
    for entry in held_by.split("; "):
        file, name = entry.split(": ")
        assert re.search(rf"^ *(async )?def {name}", (HERE / file).read_text(), re.MULTILINE), entry


def test_every_case_that_has_a_test_stands_in_the_table():
    tested = {
        str(int(number))
        for file in HERE.glob("test_*.py")
        for number in re.findall(r"^async def test_case_(\d+)_", file.read_text(), re.MULTILINE)
    }
    assert tested <= {case for case, _ in ROWS}
