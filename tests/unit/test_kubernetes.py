"""`docker/kubernetes`: by the published schemas, and by what an operator relies on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.observability.metrics import Metrics
from service.settings import Settings
from tests.kustomize import named, render
from tests.published_schemas import wrong

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "docker" / "kubernetes"
FILES = ("kubernetes-1.34.json", "keda-scaledobject.json", "prometheus-operator-servicemonitor.json")
OVERLAYS = ("cpu", "cuda")
KINDS = {
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ScaledObject",
    "Service",
    "ServiceAccount",
    "ServiceMonitor",
    "StatefulSet",
}
END_SECONDS = 5
"""What the engines' end may take after the drain."""


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(MANIFESTS / str(request.param))


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = named(objects, "StatefulSet")["spec"]["template"]["spec"]
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (only,) = pod(objects)["containers"]
    return dict(only)


def test_every_object_is_what_its_published_schema_takes(objects: list[dict[str, Any]]) -> None:
    assert {each["kind"] for each in objects} == KINDS
    assert [error for each in objects for error in wrong(each, FILES)] == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("StatefulSet", "spec/template/spec/terminationGracePeriodSecond", 50),
        ("StatefulSet", "spec/podManagementPolicy", 3),
        ("NetworkPolicy", "spec/policyType", ["Ingress"]),
        ("PodDisruptionBudget", "spec/maxUnavailable", [1]),
        ("ScaledObject", "spec/triggers/0/metricsType", "Value"),
        ("ScaledObject", "spec/triggers/0/metadata/threshold", 4),
        ("ServiceMonitor", "spec/endpoints/0/authorisation", {}),
    ],
)
def test_a_slip_in_any_of_them_is_found(kind: str, path: str, value: object) -> None:
    changed = named(render(MANIFESTS / "cpu"), kind)
    *steps, last = path.split("/")
    at: Any = changed
    for step in steps:
        at = at[int(step) if isinstance(at, list) else step]
    at[last] = value
    assert wrong(changed, FILES), path


def test_the_pod_has_as_long_to_end_as_it_needs(objects: list[dict[str, Any]]) -> None:
    (command, seconds) = container(objects)["lifecycle"]["preStop"]["exec"]["command"]
    variables = {each["name"]: each.get("value") for each in container(objects)["env"]}
    drain = float(variables["DOSIRAK_DRAIN_SECONDS"])
    assert (command, drain) == ("/bin/sleep", Settings.model_fields["drain_seconds"].default)
    assert pod(objects)["terminationGracePeriodSeconds"] >= float(seconds) + drain + END_SECONDS


def test_the_three_probes_ask_what_they_are_for(objects: list[dict[str, Any]]) -> None:
    probes = {name: container(objects)[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/livez", "readiness": "/readyz", "liveness": "/livez"}, (
        "a model that loads is no reason"
    )
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 60


def test_it_runs_as_the_images_user_and_writes_in_two_places(objects: list[dict[str, Any]]) -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    security = pod(objects)["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in dockerfile and security["runAsNonRoot"]
    own = container(objects)["securityContext"]
    assert own["readOnlyRootFilesystem"] and own["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container(objects)["volumeMounts"]} == {"/data", "/tmp"}
    assert security["fsGroup"] == security["runAsUser"], "so that a new volume can be written"
    (claim,) = named(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"], "a data directory belongs to one instance"


def test_every_variable_is_a_setting(objects: list[dict[str, Any]]) -> None:
    names = {each["name"].removeprefix("DOSIRAK_").lower() for each in container(objects)["env"]}
    assert names <= set(Settings.model_fields)
    assert pod(objects)["enableServiceLinks"] is False, "its variables would be refused as unknown settings"


def test_selectors_and_ports_meet(objects: list[dict[str, Any]]) -> None:
    stateful = named(objects, "StatefulSet")["spec"]
    labels = stateful["template"]["metadata"]["labels"].items()
    service = named(objects, "Service")
    for each in (
        stateful["selector"]["matchLabels"],
        service["spec"]["selector"],
        named(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        named(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(spread["labelSelector"]["matchLabels"] for spread in pod(objects)["topologySpreadConstraints"]),
    ):
        assert each.items() <= labels
    assert named(objects, "Service", stateful["serviceName"])["spec"]["clusterIP"] == "None"
    monitor = named(objects, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    pods = named(objects, "Service", "dosirak-pods")["metadata"]["labels"]
    assert not monitor["selector"]["matchLabels"].items() <= pods.items(), "or each pod is scraped twice"
    (port,) = container(objects)["ports"]
    assert port["containerPort"] == Settings.model_fields["port"].default
    assert (
        {each["targetPort"] for each in service["spec"]["ports"]} == {port["name"]} == {monitor["endpoints"][0]["port"]}
    )


def test_keda_asks_for_metrics_that_there_are(objects: list[dict[str, Any]]) -> None:
    spec = named(objects, "ScaledObject")["spec"]
    waiting, late = (each["metadata"]["query"] for each in spec["triggers"])
    assert "dosirak_num_requests_waiting" in waiting and "0.95" in late
    there = {sample for family in Metrics().registry.collect() for sample in (family.name, f"{family.name}_bucket")}
    assert set(re.findall(r"dosirak_\w+", f"{waiting} {late}")) <= there
    job = named(objects, "Service")["metadata"]["name"]
    assert f'job="{job}"' in waiting and f'job="{job}"' in late, "as the operator names it by the service"
    target = spec["scaleTargetRef"]
    assert named(objects, target["kind"], target["name"]) and "replicas" not in named(objects, "StatefulSet")["spec"]


def test_the_overlays_differ_in_what_they_run_on() -> None:
    cpu, cuda = (container(render(MANIFESTS / name)) for name in OVERLAYS)
    assert (cpu["image"], cuda["image"]) == ("dosirak:cpu", "dosirak:cuda")
    assert cuda["resources"]["limits"]["nvidia.com/gpu"] == "1" and "nvidia.com/gpu" not in cpu["resources"]["limits"]
    assert {"name": "DOSIRAK_DEVICE", "value": "cuda"} in cuda["env"] and len(cuda["env"]) == len(cpu["env"]) + 1
    for target in (cpu, cuda):
        stage = target["image"].partition(":")[2]
        assert re.search(rf"^FROM \S+ AS {stage}$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here to compare with")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_renders_the_same(overlay: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", MANIFESTS / overlay], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    theirs = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    assert theirs == {(each["kind"], each["metadata"]["name"]): each for each in render(MANIFESTS / overlay)}
