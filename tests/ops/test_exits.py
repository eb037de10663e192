"""Every error has an exit code, and the documented table is the real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker import errors
from ops.exits import Exit, exit_of_error, exit_of_status

DOCS = Path(__file__).parents[2] / "docs" / "commands.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("x"), Exit.USAGE),
        (errors.UnknownMode("x"), Exit.USAGE),
        (errors.RunNotFound("r"), Exit.NOT_FOUND),
        (errors.StoreUnavailable("x"), Exit.STORE_AWAY),
        (errors.ArtifactNotFound("x"), Exit.NOT_FOUND),
        (errors.ArtifactStoreUnavailable("x"), Exit.STORE_AWAY),
        (errors.OutageTooLong("x"), Exit.STORE_AWAY),
        (errors.RunEnded("x"), Exit.CONFLICT),
        (errors.RunExists("x"), Exit.CONFLICT),
        (errors.LayoutMismatch("x"), Exit.CONFLICT),
        (errors.Fenced("x"), Exit.CONFLICT),
        (errors.StoreError("x"), Exit.FAILED),
        (errors.DataDirUnusable("x"), Exit.USAGE),
        (errors.RuncastError("x"), Exit.FAILED),
    ],
)
def test_errors(error: errors.RuncastError, code: Exit) -> None:
    assert exit_of_error(error) is code


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("cancelled", 5), ("of_later", 1)])
def test_statuses(status: str, code: int) -> None:
    assert exit_of_status(status) == code


def test_the_documented_table_is_complete() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCS.read_text(), re.MULTILINE)}
    assert documented == {int(code) for code in Exit}
