"""`docker/kubernetes`, with its examples for other people's clusters: by the published schemas, and by what an operator
relies on."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.observability.metrics import Metrics
from service.settings import Settings
from tests.kustomize import named, render
from tests.published_schemas import validators, wrong

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "docker" / "kubernetes"
SCHEMAS = ("kubernetes-1.34.json", "keda-scaledobject.json", "prometheus-operator-servicemonitor.json")
GATEWAY_SCHEMAS = ("gateway-api.json", "kserve.json", "kubernetes-1.34.json")
NODE_SCHEMAS = ("kubernetes-1.34.json", "leader-worker-set.json")
OVERLAYS = ("cpu", "cuda")
KSERVE = ("inference-service.yaml", "llm-inference-service.yaml")
EXAMPLES = (*OVERLAYS, "gateway", "inference-pool", *KSERVE, "nodes")
END_SECONDS = 5
"""What the engines' end may take after the drain."""
NODES = "dosirak-nodes"
OUR_PODS = {"app.kubernetes.io/name": NODES}
HEAD_POD = {**OUR_PODS, "leaderworkerset.sigs.k8s.io/worker-index": "0"}
Objects = list[dict[str, Any]]


def kserve(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((MANIFESTS / "kserve" / name).read_text()))


def objects_of(example: str) -> Objects:
    if example in KSERVE:
        return [kserve(example)]
    if example in ("gateway", "inference-pool"):
        return [each for each in render(MANIFESTS / example) if each["kind"] in validators(*GATEWAY_SCHEMAS)]
    return render(MANIFESTS / example)


def errors(example: str, objects: Objects) -> list[str]:
    """By the schemas; the templates of several hosts' pods by those of a StatefulSet's."""
    if example != "nodes":
        schemas = SCHEMAS if example in OVERLAYS else GATEWAY_SCHEMAS
        return [error for each in objects for error in wrong(each, schemas)]
    sets = [
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "spec": {"serviceName": "a", "selector": {"matchLabels": OUR_PODS}, "template": template},
        }
        for template in templates(objects)
    ]
    return [error for each in (*objects, *sets) for error in wrong(each, NODE_SCHEMAS)]


def templates(objects: Objects) -> Objects:
    group = named(objects, "LeaderWorkerSet", NODES)["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def pod(objects: Objects) -> dict[str, Any]:
    found: dict[str, Any] = named(objects, "StatefulSet")["spec"]["template"]["spec"]
    return found


def container(objects: Objects) -> dict[str, Any]:
    (only,) = pod(objects)["containers"]
    return dict(only)


def variables(of: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in of["env"]}


def are_settings(names: dict[str, Any]) -> bool:
    return {each.removeprefix("DOSIRAK_").lower() for each in names} <= set(Settings.model_fields)


def is_built(image: str) -> bool:
    stage = image.partition(":")[2]
    return bool(re.search(rf"^FROM \S+ AS {stage}$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE))


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> Objects:
    return render(MANIFESTS / str(request.param))


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_object_is_what_its_published_schema_takes(example: str) -> None:
    objects = objects_of(example)
    assert objects and errors(example, objects) == []


SLIPS: tuple[tuple[str, str, str, object], ...] = (
    ("cpu", "StatefulSet", "spec/template/spec/terminationGracePeriodSecond", 50),
    ("cpu", "NetworkPolicy", "spec/policyType", ["Ingress"]),
    ("cpu", "ScaledObject", "spec/triggers/0/metadata/threshold", 4),
    ("cpu", "ServiceMonitor", "spec/endpoints/0/authorisation", {}),
    ("gateway", "HTTPRoute", "spec/rules/0/timeouts/request", "endless"),
    ("inference-pool", "InferencePool", "spec/endpointPickerRef/failureMode", "Open"),
    ("inference-service.yaml", "InferenceService", "spec/predictor/maxReplica", 4),
    ("llm-inference-service.yaml", "LLMInferenceService", "spec/template/containers/0/env/0/values", "8000"),
    ("nodes", "LeaderWorkerSet", "spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/comand", ["dosirak"]),
)


def test_a_slip_in_any_kind_is_found() -> None:
    unseen = []
    for example, kind, path, value in SLIPS:
        changed = copy.deepcopy(objects_of(example))
        *steps, last = path.split("/")
        at: Any = next(each for each in changed if each["kind"] == kind)
        for step in steps:
            at = at[int(step) if isinstance(at, list) else step]
        at[last] = value
        if not errors(example, changed):
            unseen.append((example, path))
    assert unseen == []


def test_the_pod_has_as_long_to_end_as_it_needs(objects: Objects) -> None:
    (command, seconds) = container(objects)["lifecycle"]["preStop"]["exec"]["command"]
    drain = float(variables(container(objects))["DOSIRAK_DRAIN_SECONDS"])
    assert (command, drain) == ("/bin/sleep", Settings.model_fields["drain_seconds"].default)
    assert pod(objects)["terminationGracePeriodSeconds"] >= float(seconds) + drain + END_SECONDS


def test_the_three_probes_ask_what_they_are_for(objects: Objects) -> None:
    probes = {name: container(objects)[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/livez", "readiness": "/readyz", "liveness": "/livez"}, (
        "a model that loads is no reason"
    )
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 60


def test_it_runs_as_the_images_user_and_writes_in_two_places(objects: Objects) -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    security = pod(objects)["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in dockerfile and security["runAsNonRoot"]
    own = container(objects)["securityContext"]
    assert own["readOnlyRootFilesystem"] and own["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container(objects)["volumeMounts"]} == {"/data", "/tmp"}
    assert security["fsGroup"] == security["runAsUser"], "so that a new volume can be written"
    (claim,) = named(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"], "a data directory belongs to one instance"
    assert are_settings(variables(container(objects)))
    assert pod(objects)["enableServiceLinks"] is False, "its variables would be refused as unknown settings"


def test_selectors_and_ports_meet(objects: Objects) -> None:
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


def test_keda_asks_for_metrics_that_there_are(objects: Objects) -> None:
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
    assert is_built(cpu["image"]) and is_built(cuda["image"])


def picker_of_the_pool() -> dict[str, Any]:
    values = yaml.safe_load((MANIFESTS / "inference-pool" / "endpoint-picker-values.yaml").read_text())["router"]["epp"]
    return dict(yaml.safe_load(values["pluginsCustomConfig"][values["pluginsConfigFile"]]))


def picker_of_kserve() -> dict[str, Any]:
    return dict(kserve("llm-inference-service.yaml")["spec"]["router"]["scheduler"]["config"]["inline"])


@pytest.mark.parametrize("picker", [picker_of_the_pool, picker_of_kserve])
def test_the_endpoint_picker_reads_gauges_that_there_are(picker: Callable[[], dict[str, Any]]) -> None:
    config = picker()
    declared = [each["type"] for each in config["plugins"]]
    used = [each["pluginRef"] for profile in config["schedulingProfiles"] for each in profile["plugins"]]
    assert set(used) <= set(declared) and all("scorer" in each for each in used)
    (extractor,) = (each for each in config["plugins"] if each["type"] == "core-metrics-extractor")
    (engine,) = extractor["parameters"]["engineConfigs"]
    assert engine["name"] == extractor["parameters"]["defaultEngine"] == "dosirak"
    gauges = {family.name for family in Metrics().registry.collect() if family.type == "gauge"}
    read = {value for key, value in engine.items() if key.endswith("Spec")}
    assert len(read) == 3 and read <= gauges


def test_the_pool_finds_the_pods_and_the_picker_may_read_them() -> None:
    objects = render(MANIFESTS / "inference-pool")
    pool, labels = (
        named(objects, "InferencePool")["spec"],
        named(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"],
    )
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert labels["llm-d.ai/engine-type"] == "dosirak"
    own = container(objects)
    assert [each["number"] for each in pool["targetPorts"]] == [each["containerPort"] for each in own["ports"]]
    assert variables(own)["DOSIRAK_OPEN_METRICS"] == "true", "the picker sends no key"
    (rule,) = named(objects, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "dosirak"}]


def test_the_gateway_leads_to_the_service_and_cuts_no_stream() -> None:
    objects = render(MANIFESTS / "gateway")
    (rule,) = named(objects, "HTTPRoute")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    (port,) = named(objects, "Service", backend["name"])["spec"]["ports"]
    assert port["port"] == backend["port"]
    assert set(rule["timeouts"].values()) == {"0s"}, "no limit: a stream lasts as long as its answer"
    assert "retry" not in rule, "a gateway does not know what may be sent twice"


@pytest.mark.parametrize("name", KSERVE)
def test_a_pod_of_kserve_is_ours_in_settings_port_probes_and_end(name: str) -> None:
    spec = kserve(name)["spec"]
    pod = spec.get("predictor") or spec["template"]
    (own,) = pod["containers"]
    given = variables(own)
    assert are_settings(given)
    assert given["DOSIRAK_OPEN_METRICS"] == "true" and pod["enableServiceLinks"] is False
    port = int(given.get("DOSIRAK_PORT") or Settings.model_fields["port"].default)
    assert [each["containerPort"] for each in own["ports"]] == [port]
    probes = [own[f"{each}Probe"]["httpGet"] for each in ("startup", "readiness", "liveness")]
    assert probes == [{"path": path, "port": port} for path in ("/livez", "/readyz", "/livez")]
    (_, seconds) = own["lifecycle"]["preStop"]["exec"]["command"]
    needed = float(seconds) + float(str(given["DOSIRAK_DRAIN_SECONDS"])) + END_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= needed
    assert (
        own["image"] == "dosirak:demo" and is_built(own["image"]) and own["securityContext"]["readOnlyRootFilesystem"]
    )


def test_the_pods_of_several_hosts_have_settings_and_the_node_its_rank_and_head() -> None:
    objects = render(MANIFESTS / "nodes")
    for template in templates(objects):
        (own,) = template["spec"]["containers"]
        given = variables(own)
        assert are_settings(given)
        assert {"DOSIRAK_TRUSTED_NETWORK", "DOSIRAK_STORE_URL", "DOSIRAK_DATABASE_URL"} <= given.keys()
        assert template["metadata"]["labels"].items() >= OUR_PODS.items()
        assert template["spec"]["enableServiceLinks"] is False
    (head,) = templates(objects)[0]["spec"]["containers"]
    assert variables(head).items() >= {"DOSIRAK_PRELOAD": "false", "DOSIRAK_DEFAULT_MODEL": "big"}.items()
    (node,) = templates(objects)[1]["spec"]["containers"]
    assert " ".join(node["command"]) == "dosirak node --rank $(LWS_WORKER_INDEX) --head $(LWS_LEADER_ADDRESS)"
    assert named(objects, "LeaderWorkerSet", NODES)["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "None"


def test_nobody_but_these_pods_reaches_a_port_of_vllms() -> None:
    objects = render(MANIFESTS / "nodes")
    nodes = named(objects, "NetworkPolicy", NODES)["spec"]
    assert nodes["podSelector"]["matchLabels"] == OUR_PODS and set(nodes["policyTypes"]) == {"Ingress", "Egress"}
    assert nodes["ingress"] == [{"from": [{"podSelector": {"matchLabels": OUR_PODS}}]}]
    assert nodes["egress"][0] == {"to": [{"podSelector": {"matchLabels": OUR_PODS}}]}
    assert all(rule.get("ports") for rule in nodes["egress"][1:])
    clients = named(objects, "NetworkPolicy", "dosirak-nodes-clients")["spec"]
    assert clients["podSelector"]["matchLabels"] == HEAD_POD == named(objects, "Service", NODES)["spec"]["selector"]
    (rule,) = clients["ingress"]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]


def test_every_line_of_the_conformance_table_names_a_test_that_there_is() -> None:
    text = (ROOT / "docs" / "clusters.md").read_text().partition("**Not offered**")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    linked = re.compile(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)")
    lines = [row for row in rows if not row.startswith("| who asks")]
    assert len(lines) >= 14 and [row for row in lines if not linked.findall(row)] == []
    named_tests = [each for row in lines for each in linked.findall(row)]
    gone = [
        (name, path)
        for name, path in named_tests
        if not re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert gone == []
