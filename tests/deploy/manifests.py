"""``deploy/kubernetes``: its manifests, and what kustomize would make of their settings."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from tests.deploy.program import DEPLOY

__all__ = [
    "KUBERNETES",
    "MONITORING",
    "container",
    "drained",
    "environment",
    "kustomization",
    "manifests",
    "named",
    "pod",
]

KUBERNETES = DEPLOY / "kubernetes"
MONITORING = KUBERNETES / "monitoring"


def kustomization() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    return loaded


@cache
def manifests() -> list[dict[str, Any]]:
    """Every object that is applied. Shared by all tests: change a copy."""
    files = [KUBERNETES / name for name in kustomization()["resources"]]
    return [loaded for file in files for loaded in yaml.safe_load_all(file.read_text())]


def named(kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    (found,) = [m for m in manifests() if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def environment() -> dict[str, str]:
    """The settings that all pods get."""
    (generator,) = kustomization()["configMapGenerator"]
    lines = (KUBERNETES / generator["envs"][0]).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and line[0] != "#")


def pod(component: str) -> dict[str, Any]:
    """The pod's specification: of ``gateway`` or ``worker``."""
    spec: dict[str, Any] = named("Deployment", f"runcast-{component}")["spec"]["template"]["spec"]
    return spec


def container(component: str) -> dict[str, Any]:
    (only,) = pod(component)["containers"]
    loaded: dict[str, Any] = only
    return loaded


def drained(component: str) -> float:
    """Seconds that the pod is given after its ``preStop``."""
    hook = container(component).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    assert hook[0] == "sleep"
    return float(pod(component)["terminationGracePeriodSeconds"]) - float(hook[1])
