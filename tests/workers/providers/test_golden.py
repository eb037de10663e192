"""A small stream of our own for each API, its items and its merged message, kept as files.

They stand for what is stored by now: a change here is a change of what people's runs look like. After a change that is
meant, ``python -m tests.workers.providers.test_golden`` writes them anew, for the diff to be read.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.items import encode
from workers.merged import MergedStream
from workers.providers import ADAPTERS

GOLDEN = Path(__file__).parent / "golden"


def _lines(api: str) -> tuple[list[str], str]:
    stream = MergedStream(api)
    items = stream.feed((GOLDEN / f"{api}.stream").read_bytes()) + stream.close()
    stored = [(item.type, item.data.decode()) for item in map(encode, items)]
    return [f"{kind} {data}" for kind, data in stored], json.dumps(stream.result(), indent=1, ensure_ascii=False)


@pytest.mark.parametrize("api", sorted(ADAPTERS))
def test_the_items_and_the_message_are_those_of_the_files(api: str) -> None:
    items, result = _lines(api)
    assert items == (GOLDEN / f"{api}.items").read_text().splitlines()
    assert json.loads(result) == json.loads((GOLDEN / f"{api}.json").read_text())


def test_there_is_nothing_else_in_the_directory() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {
        f"{a}.{k}" for a in ADAPTERS for k in ("stream", "items", "json")
    }


def _write() -> None:
    for api in ADAPTERS:
        items, result = _lines(api)
        (GOLDEN / f"{api}.items").write_text("".join(line + "\n" for line in items))
        (GOLDEN / f"{api}.json").write_text(result + "\n")


if __name__ == "__main__":
    _write()
