"""docs/llm.md against what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from workers.llm.endpoints import VENDORS
from workers.llm.options import parse_options
from workers.llm.settings import APIS, LlmSettings, VendorKeys

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "llm.md").read_text()
_IN_WORDS = {"LLM_BASE_URL": "the API's own vendor", "LLM_KEY": "the vendor's usual variable"}
_IN_WORDS["LLM_PRICE_AS"] = "the seller at the base URL"


def _shown(value: Any) -> str:
    value = value.get_secret_value() if isinstance(value, SecretStr) else value
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_setting_is_documented_with_its_default() -> None:
    section = TEXT.partition("## Settings")[2]
    documented = dict(re.findall(r"^\| `(LLM_[A-Z_]+)` \| (.*?) ?\|", section, re.MULTILINE))
    settings = LlmSettings.model_construct()
    expected = {f"LLM_{name.upper()}": _shown(getattr(settings, name)) for name in LlmSettings.model_fields}
    assert documented == {**expected, **_IN_WORDS}


def test_every_api_vendor_and_key_is_named() -> None:
    names = [*APIS, *(f"`{name.upper()}`" for name in VendorKeys.model_fields)]
    assert [name for name in names if name not in TEXT] == []
    named = re.search(r"`input.provider` may name ([^.]*?), if the worker", TEXT)
    assert named is not None
    assert re.split(r", | or ", named[1]) == sorted(VENDORS)


def test_every_failure_is_in_the_table() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "workers" / "llm").glob("*.py"))
    raised = set(re.findall(r'(?:RunnerFailed|CallFailed)\(\s*"([a-z_]+)"', sources)) | {"corrupt_stream"}
    table = TEXT.partition("## Failures")[2].partition("## Settings")[0]
    documented = set(re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    assert raised == documented


def test_every_option_is_in_the_table() -> None:
    table = TEXT.partition("| option | value |")[2].partition("\n\n")[0]
    options = re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE)
    values = {"temperature": "1", "top_p": "1", "max_output_tokens": "1", "extra": "{}"}
    assert len(options) == 6
    parse_options({name: values.get(name, "x") for name in options})
