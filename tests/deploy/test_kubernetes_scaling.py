"""What the autoscalers go by: metrics that exist, scraped from these pods, made of them as meant."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import missing
from tests.deploy.manifests import MONITORING, container, environment, kustomization, named
from tests.deploy.program import DEPLOY, settings_of
from tests.observability.queries import asked_for
from tests.observability.registered import registered


def promtool(*arguments: str) -> str:
    found = shutil.which("promtool")
    if found is None:
        missing("there is no promtool on this machine (Debian: apt install prometheus)")
    done = subprocess.run([str(found), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def adapter(kind: str) -> list[dict[str, Any]]:
    """``rules`` for metrics of pods, ``externalRules`` for others."""
    loaded: list[dict[str, Any]] = yaml.safe_load((MONITORING / "adapter.yml").read_text())[kind]
    return loaded


def query(rule: dict[str, Any]) -> str:
    """What the adapter asks for the pods of the namespace."""
    filled = {
        "<<.Series>>": re.sub(r"\{.*", "", rule["seriesQuery"]),
        "<<.LabelMatchers>>": f'namespace="{kustomization()["namespace"]}"',
        "<<.GroupBy>>": "pod",
    }
    text: str = rule["metricsQuery"]
    for name, value in filled.items():
        text = text.replace(name, value)
    return text


def offered(rule: dict[str, Any]) -> str:
    """Under which name."""
    name: str = rule.get("name", {}).get("as") or re.sub(r"\{.*", "", rule["seriesQuery"])
    return name


def wanted(name: str) -> list[dict[str, Any]]:
    metrics: list[dict[str, Any]] = named("HorizontalPodAutoscaler", name)["spec"]["metrics"]
    return metrics


def test_the_autoscalers_ask_for_what_the_adapter_offers() -> None:
    every = wanted("runcast-gateway") + wanted("runcast-worker")
    pods = {metric["pods"]["metric"]["name"] for metric in every if metric["type"] == "Pods"}
    external = {metric["external"]["metric"]["name"] for metric in every if metric["type"] == "External"}
    assert pods == {offered(rule) for rule in adapter("rules")}
    assert external == {offered(rule) for rule in adapter("externalRules")}


def test_the_adapter_asks_for_metrics_that_exist() -> None:
    known = registered()
    added = {target["target_label"] for target in relabelled() if "target_label" in target}
    for rule in adapter("rules") + adapter("externalRules"):
        assert set(rule["resources"]["overrides"]) <= added
        for expr in (rule["seriesQuery"], query(rule)):
            asked = asked_for(expr)
            assert asked, expr
            for metric, labels in asked:
                assert labels <= {*known[metric].labels, *added}, expr


def test_the_numbers_are_what_they_are_for(tmp_path: Path) -> None:
    """Prometheus itself, with two gateways, two workers, and another deployment beside them."""
    (viewers,), (runs,) = adapter("rules"), adapter("externalRules")
    here, other = 'namespace="runcast"', 'namespace="other"'
    series = {
        f'runcast_viewers{{{here},pod="g1"}}': 30,
        f'runcast_viewers{{{here},pod="g2"}}': 50,
        f'runcast_viewers{{{other},pod="g1"}}': 999,
        # Each process tells what it saw at its last sweep.
        f'runcast_live_runs{{{here},pod="g1",status="queued"}}': 6,
        f'runcast_live_runs{{{here},pod="w1",status="queued"}}': 7,
        f'runcast_live_runs{{{here},pod="w1",status="running"}}': 100,
        f'runcast_live_runs{{{here},pod="w1",status="waiting"}}': 100,
        f'runcast_live_runs{{{other},pod="w1",status="queued"}}': 999,
        f'runcast_worker_running{{{here},pod="w1"}}': 4,
        f'runcast_worker_running{{{here},pod="w2"}}': 3,
    }
    queued = {name: value for name, value in series.items() if "worker_running" not in name}
    tests = [
        told(series, query(viewers), [{"labels": '{pod="g1"}', "value": 30}, {"labels": '{pod="g2"}', "value": 50}]),
        told(series, query(runs), [{"labels": "{}", "value": 14}]),
        told(queued, query(runs), [{"labels": "{}", "value": 7}]),  # not a worker is there yet
    ]
    file = tmp_path / "adapter.test.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", str(file))


def told(series: dict[str, int], expr: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    inputs = [{"series": name, "values": f"{value}x5"} for name, value in series.items()]
    return {"input_series": inputs, "promql_expr_test": [{"expr": expr, "eval_time": "3m", "exp_samples": samples}]}


def test_a_worker_is_wanted_before_all_slots_are_taken() -> None:
    (metric,) = wanted("runcast-worker")
    assert metric["external"]["target"]["type"] == "AverageValue", "else the number would not grow with the queue"
    assert 0 < int(metric["external"]["target"]["averageValue"]) < settings_of(environment()).concurrency
    for name, at_least in (("runcast-gateway", 2), ("runcast-worker", 1)):
        spec = named("HorizontalPodAutoscaler", name)["spec"]
        assert at_least <= spec["minReplicas"] < spec["maxReplicas"]


# What is scraped


def relabelled() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load((MONITORING / "scrape.yml").read_text())["scrape_configs"]
    rules: list[dict[str, Any]] = job["relabel_configs"]
    return rules


def discovered(component: str, port: str) -> dict[str, str]:
    """As Prometheus finds a pod's port."""
    labels = named("Deployment", f"runcast-{component}")["spec"]["template"]["metadata"]["labels"]
    meta = {f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', k)}": v for k, v in labels.items()}
    meta |= {"__meta_kubernetes_pod_container_port_name": port, "__meta_kubernetes_namespace": "runcast"}
    return {**meta, "__meta_kubernetes_pod_name": f"{component}-1"}


def test_each_pod_is_scraped_once_and_named_as_alerts_and_adapter_expect(tmp_path: Path) -> None:
    """The pods of a cluster, stood in for by a list: Debian's Prometheus knows no Kubernetes."""
    ports = [(component, container(component)["ports"][0]["name"]) for component in ("gateway", "worker")]
    found = [{"targets": ["10.0.0.1:1"], "labels": discovered(*port)} for port in [*ports, ("worker", "debugger")]]
    file = tmp_path / "prometheus.yml"
    job = {"job_name": "runcast", "static_configs": found, "relabel_configs": relabelled()}
    file.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    kept = [
        t["labels"]
        for t in json.loads(promtool("check", "service-discovery", "--timeout=1s", str(file), "runcast"))
        if t["labels"]
    ]
    said = {(target["job"], target["namespace"], target["pod"]) for target in kept}
    assert said == {("runcast-gateway", "runcast", "gateway-1"), ("runcast-worker", "runcast", "worker-1")}
    assert len(kept) == 2
    alerts = (DEPLOY / "prometheus" / "runcast-alerts.yml").read_text()
    (pattern,) = re.findall(r'up\{job=~"([^"]+)"\}', alerts)
    assert all(re.fullmatch(pattern, target["job"]) for target in kept)
