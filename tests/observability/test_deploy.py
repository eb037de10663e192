"""The dashboard, the alerts and the page about them, against each other and against Prometheus' own tool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import missing
from tests.observability.queries import DEPLOY, asked_for, expressions
from tests.observability.registered import registered

PAGES = [DEPLOY.parent / "docs" / page for page in ("observability.md", "operations.md", "artifacts.md", "costs.md")]
KINDS = {"C": "counter", "G": "gauge", "H": "histogram"}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        missing("there is no promtool on this machine (Debian: apt install prometheus)")
    return str(found)


def ran(*command: str) -> str:
    done = subprocess.run(command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documented() -> dict[str, tuple[str, set[str], str]]:
    text = (DEPLOY.parent / "docs" / "observability.md").read_text()
    rows = re.findall(r"^\| `(runcast_\w+)` \| ([CGH]) \| ([\w, ]*?) ?\| (.+) \|$", text, re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows}), "each has one row"
    return {name: (KINDS[kind], {w for w in labels.split(", ") if w}, says) for name, kind, labels, says in rows}


def test_the_tables_of_metrics_are_complete_and_right() -> None:
    real = {name: (metric.type, set(metric.labels)) for name, metric in registered().items()}
    assert {name: (kind, labels) for name, (kind, labels, _) in documented().items()} == real


def test_every_metric_has_a_meaning() -> None:
    for name, (_, _, says) in documented().items():
        assert len(says.split()) > 1, name


def test_pages_name_metrics_that_exist() -> None:
    known = set(registered())
    for page in PAGES:
        for name in re.findall(r"`(runcast_[a-z_]+)(?:\{[^`]*)?`", page.read_text() if page.exists() else ""):
            assert name in known or re.sub("_(bucket|sum|count)$", "", name) in known, f"{page.name}: {name}"


def test_every_query_is_well_formed_and_names_what_exists() -> None:
    known = registered()
    for expr in expressions():
        asked = asked_for(expr)
        assert asked, expr
        for metric, _ in asked:
            plain = metric if metric in known else re.sub("_(bucket|sum|count)$", "", metric)
            assert plain in known or metric in ("up",) or metric.startswith("process_"), metric


def test_what_is_wrong_with_a_query_is_noticed() -> None:
    with pytest.raises(ValueError, match=r"unclosed|parenthesis|unexpected"):
        asked_for("sum by (le (rate(x[5m]))")
    (asked,) = asked_for('sum by (a) (rate(x_total{b="1"}[5m]))')
    assert asked == ("x_total", frozenset({"a", "b"}))


def test_prometheus_takes_every_query_as_it_stands(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"q:{i}", "expr": expr} for i, expr in enumerate(expressions())]
    every = tmp_path / "queries.yml"
    every.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(rules)} rules found" in ran(promtool, "check", "rules", str(every))


def test_prometheus_takes_the_example(promtool: str) -> None:
    assert "SUCCESS" in ran(promtool, "check", "config", "prometheus.yml")


def test_each_alert_fires_where_it_should_and_only_there(promtool: str) -> None:
    assert "SUCCESS" in ran(promtool, "test", "rules", "runcast-alerts.test.yml")
    rules = yaml.safe_load((DEPLOY / "prometheus" / "runcast-alerts.yml").read_text())["groups"][0]["rules"]
    tested = (DEPLOY / "prometheus" / "runcast-alerts.test.yml").read_text()
    for rule in rules:
        assert f'alertname="{rule["alert"]}"' in tested
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana" / "runcast.json").read_text())
    return loaded


def test_the_dashboard_has_its_own_variables_only(dashboard: dict[str, Any]) -> None:
    """A data source or a process by name would be one of the machine on which it was made."""
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert names == {"datasource", "instance"}
    text = json.dumps(dashboard)
    assert set(re.findall(r"\$\{?(\w+)", text)) <= names | {"__rate_interval", "__all"}
    for panel in dashboard["panels"]:
        for part in (panel, *panel.get("targets", ())):
            if part.get("type") != "row" and "datasource" in part:
                assert part["datasource"]["uid"] == "${datasource}"


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_grafana_is_told_where_both_are() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert sources[0]["type"] == "prometheus"
    providers = yaml.safe_load((provisioning / "dashboards" / "runcast.yml").read_text())["providers"]
    assert providers[0]["type"] == "file"
