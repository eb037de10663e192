"""The house rules that a machine can check: who may import whom, and which names say nothing."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
PACKAGES = ("broker", "gateway", "ops", "workers")
BANNED = {"utils", "util", "helpers", "helper", "manager", "handler", "common", "base", "data"}


def contracts() -> list[dict[str, object]]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found: list[dict[str, object]] = config["tool"]["importlinter"]["contracts"]
    return found


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def words(name: str) -> set[str]:
    """``RunManager`` and ``run_manager`` → ``{"run", "manager"}``."""
    spaced = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    # A data directory is called that everywhere; “data” alone says nothing.
    return set(spaced.replace("data_dir", "").split("_"))


def test_imports_keep_their_contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On failure the captured output names the chain of imports that breaks one."""
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True) == 0


def pure_modules() -> Iterator[str]:
    """Those that say so in their docstring."""
    for path in sources():
        if re.search(r"\bPure[.:]", ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_every_module_that_calls_itself_pure_is_held_to_it() -> None:
    named = [str(module) for c in contracts() if "pure" in str(c["name"]) for module in c["source_modules"]]  # type: ignore[attr-defined]
    claimed = set(pure_modules())
    assert {"broker.merge", "workers.providers.openai_chat", "workers.hermes.text"} <= claimed
    assert {m for m in claimed if not any(m == name or m.startswith(f"{name}.") for name in named)} == set()


def test_names_say_what_things_are() -> None:
    bad = [str(path.relative_to(ROOT)) for path in sources() if words(path.stem) & BANNED]
    for path in sources():
        classes = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ClassDef)]
        bad += [f"{path.relative_to(ROOT)}: {c.name}" for c in classes if words(c.name) & BANNED]
    assert bad == []
