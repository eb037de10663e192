"""docs/remote.md against what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from workers.remote import events
from workers.remote.settings import RemoteSettings

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "remote.md").read_text()


def _shown(value: Any) -> str:
    value = value.get_secret_value() if isinstance(value, SecretStr) else value
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_setting_is_documented_with_its_default() -> None:
    section = TEXT.partition("## Settings")[2]
    documented = dict(re.findall(r"^\| `(REMOTE_[A-Z_]+)` \| (.*?) ?\|", section, re.MULTILINE))
    settings = RemoteSettings.model_construct()
    expected = {f"REMOTE_{name.upper()}": _shown(getattr(settings, name)) for name in RemoteSettings.model_fields}
    assert documented == expected


def test_every_failure_is_in_the_table() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "workers" / "remote").glob("*.py"))
    raised = set(re.findall(r'"(remote_[a-z_]+|not_configured)"', sources))
    table = TEXT.partition("## Failures")[2].partition("## Settings")[0]
    assert raised == set(re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE))


def test_every_event_is_in_the_table() -> None:
    table = TEXT.partition("| event | item |")[2].partition("\n\n")[0]
    documented = set(re.findall(r"`([a-z_.]+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    sets = (value for name, value in vars(events).items() if name.startswith("_") and isinstance(value, frozenset))
    known = frozenset[str]().union(*sets) - events._OURS - events._ENVELOPE
    assert known <= documented
