"""The recorded provider streams beside the repository: found, read, and what is expected of them in our meaning."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3].parent / "shared" / "fixtures" / "merge"

Difference = tuple[str, Any, str]
"""Where the right result differs from what the SDK gave: path, right value, reason."""


@dataclass(frozen=True)
class Recording:
    """``name`` is ``PROVIDER/STREAM``; ``expected`` what the provider's own SDK made of it."""

    name: str
    api: str
    stream: bytes
    expected: dict[str, Any]
    note: str


@dataclass(frozen=True)
class Bug:
    name: str
    api: str
    chunks: list[dict[str, Any]]

    @property
    def stream(self) -> bytes:
        """The chunks as their provider sends them."""
        return b"".join(
            (f"event: {c['type']}\n".encode() if "type" in c else b"") + b"data: " + json.dumps(c).encode() + b"\n\n"
            for c in self.chunks
        )


def names() -> list[str]:
    """Of all recordings, from the index; empty where they are not there."""
    index = ROOT / "INDEX.tsv"
    return [line.split("\t")[0] for line in index.read_text().splitlines()[1:]] if index.exists() else []


def bugs() -> list[str]:
    return sorted(path.stem for path in (ROOT / "bugs").glob("*.json"))


@functools.cache
def api_of(name: str) -> str:
    return str(_expected_file(name)["api"])


def apis() -> dict[str, str]:
    return {name: api_of(name) for name in names()}


def load(name: str) -> Recording:
    require()
    told = _expected_file(name)
    stream = (ROOT / name).parent / told["file"]
    return Recording(name, told["api"], stream.read_bytes(), told["expected"], told.get("note", ""))


def load_bug(name: str) -> Bug:
    require()
    told = json.loads((ROOT / "bugs" / f"{name}.json").read_text())
    return Bug(name, told["api"], told["chunks"])


def _expected_file(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((ROOT / f"{name}.expected.json").read_text())
    return told


def require() -> None:
    """Skips where the recordings are not there; in CI they must be."""
    if ROOT.is_dir():
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"the recorded streams are not at {ROOT}")
    pytest.skip("no recorded provider streams beside the repository")


def usage_in_our_meaning(api: str, usage: dict[str, Any]) -> dict[str, int]:
    """What the SDK reports → ours: ``input_tokens`` with the cached ones, ``output_tokens`` with the reasoning.

    A zero for what the cache did, where the provider said nothing, is an SDK's default and is left out.
    """
    read, written = usage.get("cache_read") or 0, usage.get("cache_creation") or 0
    # Anthropic and Bedrock count what was read from and written to the cache beside the input.
    beside = read + written if api in ("anthropic.messages", "bedrock.converse") else 0
    told = {
        "input_tokens": usage["input_tokens"] + beside,
        "output_tokens": usage["output_tokens"],
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "reasoning_tokens": usage.get("reasoning") or 0,
    }
    return {name: count for name, count in told.items() if count or name in ("input_tokens", "output_tokens")}
