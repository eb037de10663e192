"""The image, and the versions that are installed in it."""

from __future__ import annotations

import json
import re

from tests.deploy.program import DEPLOY, ROOT, parses


def test_the_image_copies_what_there_is_and_runs_a_real_command() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    allowed = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    for line in re.findall(r"^COPY (.*)", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in allowed, f".dockerignore keeps {source} out"
    entry = re.search(r"^ENTRYPOINT (.*)", text, re.MULTILINE)
    command = re.search(r"^CMD (.*)", text, re.MULTILINE)
    assert entry
    assert command
    assert json.loads(entry[1]) == ["runcast"]
    parses(json.loads(command[1]))


def test_constraints_name_every_installed_dependency_exactly() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line) for line in lines)
    assert lines == list(dict.fromkeys(lines))
    wanted = re.findall(r'^    "([A-Za-z0-9-]+)[\[><=]', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert {name.lower() for name in wanted} <= {line.partition("==")[0] for line in lines}
