"""``deploy/kubernetes``: Kubernetes takes the manifests, and what they say of the program is true."""

from __future__ import annotations

import re
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from broker.settings import Settings
from gateway.app import Gateway
from tests.deploy.manifests import (
    KUBERNETES,
    container,
    drained,
    environment,
    kustomization,
    manifests,
    named,
    pod,
)
from tests.deploy.program import DEPLOY, Replaced, answers, launched, parses, settings_of, unknown, wait_for
from tests.servers import RedisServer, free_port

COMPONENTS = ("gateway", "worker")
VERSIONS = ("1.30", kubernetes_validate.latest_version())
"""The oldest that the manifests are written for, and the newest there is."""
SECRET = {"RUNCAST_REDIS_URL", "RUNCAST_SECRET"}
INSIDE = {"/metrics", "/healthz", "/readyz"}
"""Nothing for the world."""


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_every_manifest(version: str) -> None:
    for manifest in manifests():
        assert version.startswith(kubernetes_validate.validate(manifest, version, strict=True))


def test_a_wrong_manifest_is_refused() -> None:
    wrong = deepcopy(named("Deployment", "runcast-gateway"))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_everything_here_is_applied() -> None:
    assert {file.name for file in KUBERNETES.glob("*.yaml")} == {*kustomization()["resources"], "kustomization.yaml"}
    assert named("Namespace", kustomization()["namespace"])
    (image,) = kustomization()["images"]
    assert {container(component)["image"] for component in COMPONENTS} == {image["name"]}


def test_no_manifest_has_anchors() -> None:
    """kustomize changes what it reads, and not every version of it knows that an alias is a second place."""
    for name in kustomization()["resources"]:
        tokens = yaml.scan((KUBERNETES / name).read_text())
        assert not any(isinstance(token, yaml.AnchorToken | yaml.AliasToken) for token in tokens), name


def test_settings_exist_and_nothing_secret_is_among_them() -> None:
    assert unknown(environment()) == set()
    assert not SECRET & set(environment())
    assert settings_of(environment()).cost_cap is None, "no cap unless somebody sets one"
    (generator,) = kustomization()["configMapGenerator"]
    for component in COMPONENTS:
        sources = container(component)["envFrom"]
        assert {"configMapRef": {"name": generator["name"]}} in sources
        assert {"secretRef": {"name": "runcast"}} in sources
        assert pod(component)["enableServiceLinks"] is False


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_run_real_commands_on_the_ports_that_they_name(component: str) -> None:
    told = parses(container(component)["args"]).params
    settings = settings_of(environment())
    port = told["port"] if component == "gateway" else told["metrics_port"] or settings.worker_metrics_port
    (named_port,) = container(component)["ports"]
    assert named_port["containerPort"] == port
    assert settings.host == "0.0.0.0", "else nobody reaches it"
    probes = {kind: container(component)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    # Not alive is who does not answer; a Redis that is away is mended by no restart.
    wanted = {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert probes == {kind: {"path": path, "port": named_port["name"]} for kind, path in wanted.items()}


def test_a_stop_waits_longer_than_a_drain() -> None:
    settings = settings_of(environment())
    assert drained("gateway") >= settings.drain + 10
    assert drained("worker") >= settings.worker_drain + 10
    assert drained("gateway") < pod("gateway")["terminationGracePeriodSeconds"], (
        "first no more connections, then SIGTERM"
    )


def test_who_is_selected_is_who_is_there() -> None:
    for component in COMPONENTS:
        deployment = named("Deployment", f"runcast-{component}")["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        assert deployment["selector"]["matchLabels"] == labels
        assert named("PodDisruptionBudget", f"runcast-{component}")["spec"]["selector"]["matchLabels"] == labels
        assert named("HorizontalPodAutoscaler", f"runcast-{component}")["spec"]["scaleTargetRef"] == {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": f"runcast-{component}",
        }
        assert "replicas" not in deployment, "applying again would undo what the autoscaler did"
    service = named("Service", "runcast-gateway")["spec"]
    assert service["selector"] == named("Deployment", "runcast-gateway")["spec"]["template"]["metadata"]["labels"]
    assert service.get("sessionAffinity", "None") == "None"
    assert {port["targetPort"] for port in service["ports"]} == {port["name"] for port in container("gateway")["ports"]}


def test_what_is_shared_lies_on_a_volume_that_all_can_write() -> None:
    settings = settings_of(environment())
    claim = named("PersistentVolumeClaim", "runcast-files")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for component in COMPONENTS:
        mounts = {mount["name"]: mount["mountPath"] for mount in container(component)["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod(component)["volumes"]}
        assert volumes["files"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert Path(mounts["files"]) == settings.data_dir
        assert settings.artifact_store.startswith(f"file:{settings.data_dir}/")
        assert settings.tasks_path.is_relative_to(mounts["files"])
        # Where the root is read-only, what is temporary needs a place.
        assert (mounts["tmp"], volumes["tmp"]["emptyDir"]) == ("/tmp", {})


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_are_as_restricted_as_their_namespace_demands(component: str) -> None:
    """The profile "restricted" of Kubernetes' Pod Security Standards, as far as it concerns these pods."""
    demanded = named("Namespace", "runcast")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert demanded == "restricted"
    assert (
        pod(component)["securityContext"].items()
        >= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}.items()
    )
    own = container(component)["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["capabilities"]) == (False, {"drop": ["ALL"]})
    assert own["readOnlyRootFilesystem"] is True
    assert pod(component)["automountServiceAccountToken"] is False
    (made,) = re.findall(r"useradd .*--uid (\d+)", (DEPLOY / "Dockerfile").read_text())
    assert pod(component)["securityContext"]["runAsUser"] == int(made), "the account of the image"
    resources = container(component)["resources"]
    assert {"cpu", "memory"} == set(resources["requests"])
    assert "memory" in resources["limits"]


# The way in


def paths_of(routes: list[Any]) -> set[str]:
    """Those of the gateway's routes, the plain ASGI ones besides."""
    found = {str(route.path) for route in routes if getattr(route, "path", None)}
    for route in routes:
        inner = getattr(route, "original_router", None)
        found |= paths_of(inner.routes) if inner is not None else set()
    return found


def admitted(path: str, rules: list[dict[str, Any]]) -> bool:
    """As the specification of Ingress has it: a prefix is one of whole segments."""
    for rule in rules:
        if rule["pathType"] == "Exact" and path == rule["path"]:
            return True
        if rule["pathType"] == "Prefix" and f"{path}/".startswith(f"{rule['path'].rstrip('/')}/"):
            return True
    return False


def test_the_ingress_lets_in_what_is_for_the_world_and_nothing_else() -> None:
    (rule,) = named("Ingress", "runcast")["spec"]["rules"]
    rules = rule["http"]["paths"]
    served = paths_of(Gateway(Settings(redis_url="memory:ingress")).api.router.routes)
    assert {"/", "/v1/runs/{run_id}/stream", "/chat/stream", "/api/chat/stream", "/ui/{name}", *INSIDE} <= served
    assert {path for path in served if not admitted(path, rules)} == INSIDE
    assert {r["path"] for r in rules if not any(admitted(path, [r]) for path in served)} == set(), "of no use"


def test_the_ingress_agrees_with_the_gateway() -> None:
    ingress = named("Ingress", "runcast")
    said = {name.rpartition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}
    settings = settings_of(environment())
    assert said["proxy-buffering"] == "off"
    assert int(said["proxy-body-size"].removesuffix("m")) << 20 == settings.body_max_bytes
    assert int(said["proxy-send-timeout"]) > settings.stall_limit
    assert int(said["proxy-read-timeout"]) > settings.result_wait_max
    assert "non_idempotent" not in said["proxy-next-upstream"]
    (rule,), (tls,) = ingress["spec"]["rules"], ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]
    service = named("Service", "runcast-gateway")
    for path in rule["http"]["paths"]:
        assert path["backend"]["service"]["name"] == service["metadata"]["name"]
        assert path["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


# Run


@pytest.mark.long
def test_pods_start_and_answer_their_probes(redis7: RedisServer, namespace: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    secret = {"RUNCAST_REDIS_URL": redis7.url, "RUNCAST_SECRET": "s" * 32, "RUNCAST_NAMESPACE": namespace}
    with ExitStack() as stack:
        for component in COMPONENTS:
            shipped = container(component)["ports"][0]["containerPort"]
            port = free_port()
            here = Replaced({"/var/lib/runcast": str(files), "0.0.0.0": "127.0.0.1", str(shipped): port})
            settings = {**here.environment(environment()), **secret}
            stack.enter_context(launched(tmp_path, here.all(container(component)["args"]), settings))
            for kind in ("startup", "liveness", "readiness"):
                path = container(component)[f"{kind}Probe"]["httpGet"]["path"]
                wait_for(lambda url=f"http://127.0.0.1:{port}{path}": answers(url) == 200, tmp_path)  # type: ignore[misc]
