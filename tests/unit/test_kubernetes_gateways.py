"""The examples for other people's clusters: Gateway API, inference extension, KServe; by schema and by our names."""

from __future__ import annotations

import copy
import re
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
FILES = ("gateway-api.json", "kserve.json", "kubernetes-1.34.json")
KSERVE = ("inference-service.yaml", "llm-inference-service.yaml")
END_SECONDS = 5


def kserve(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((MANIFESTS / "kserve" / name).read_text()))


def rendered(name: str) -> list[dict[str, Any]]:
    return [each for each in render(MANIFESTS / name) if each["kind"] in validators(*FILES)]


EXAMPLES = ("gateway", "inference-pool", *KSERVE)


def objects_of(example: str) -> list[dict[str, Any]]:
    return [kserve(example)] if example in KSERVE else rendered(example)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_object_is_what_its_published_schema_takes(example: str) -> None:
    objects = objects_of(example)
    assert objects and [error for each in objects for error in wrong(each, FILES)] == []


@pytest.mark.parametrize(
    ("example", "kind", "path", "value"),
    [
        ("gateway", "HTTPRoute", "spec/rules/0/timeouts/request", "endless"),
        ("gateway", "HTTPRoute", "spec/rules/0/timeout", {}),
        ("gateway", "Gateway", "spec/listeners/0/port", 0),
        ("inference-pool", "InferencePool", "spec/targetPort", 3000),
        ("inference-pool", "InferencePool", "spec/endpointPickerRef/failureMode", "Open"),
        ("inference-service.yaml", "InferenceService", "spec/predictor/maxReplica", 4),
        ("inference-service.yaml", "InferenceService", "spec/predictor/containers/0/lifecycles", {}),
        ("llm-inference-service.yaml", "LLMInferenceService", "spec/replica", 2),
        ("llm-inference-service.yaml", "LLMInferenceService", "spec/template/containers/0/env/0/values", "8000"),
    ],
)
def test_a_slip_in_any_of_them_is_found(example: str, kind: str, path: str, value: object) -> None:
    changed = copy.deepcopy(next(each for each in objects_of(example) if each["kind"] == kind))
    *steps, last = path.split("/")
    at: Any = changed
    for step in steps:
        at = at[int(step) if isinstance(at, list) else step]
    at[last] = value
    assert wrong(changed, FILES), path


def picker_configs() -> dict[str, dict[str, Any]]:
    values = yaml.safe_load((MANIFESTS / "inference-pool" / "endpoint-picker-values.yaml").read_text())["router"]["epp"]
    own = yaml.safe_load(values["pluginsCustomConfig"][values["pluginsConfigFile"]])
    inline = kserve("llm-inference-service.yaml")["spec"]["router"]["scheduler"]["config"]["inline"]
    return {"inference-pool": own, "kserve": inline}


@pytest.mark.parametrize("name", ["inference-pool", "kserve"])
def test_the_endpoint_picker_reads_gauges_that_there_are(name: str) -> None:
    config = picker_configs()[name]
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
    pool, stateful = named(objects, "InferencePool")["spec"], named(objects, "StatefulSet")["spec"]["template"]
    labels = stateful["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert labels["llm-d.ai/engine-type"] == "dosirak"
    (container,) = stateful["spec"]["containers"]
    assert [each["number"] for each in pool["targetPorts"]] == [each["containerPort"] for each in container["ports"]]
    assert {"name": "DOSIRAK_OPEN_METRICS", "value": "true"} in container["env"], "the picker sends no key"
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
    (container,) = pod["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert {each.removeprefix("DOSIRAK_").lower() for each in variables} <= set(Settings.model_fields)
    assert variables["DOSIRAK_OPEN_METRICS"] == "true" and pod["enableServiceLinks"] is False
    port = int(variables.get("DOSIRAK_PORT") or Settings.model_fields["port"].default)
    assert [each["containerPort"] for each in container["ports"]] == [port]
    probes = [container[f"{each}Probe"]["httpGet"] for each in ("startup", "readiness", "liveness")]
    assert probes == [{"path": path, "port": port} for path in ("/livez", "/readyz", "/livez")]
    (_, seconds) = container["lifecycle"]["preStop"]["exec"]["command"]
    needed = float(seconds) + float(str(variables["DOSIRAK_DRAIN_SECONDS"])) + END_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= needed
    assert re.search(r"^FROM \S+ AS demo$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert container["image"] == "dosirak:demo" and container["securityContext"]["readOnlyRootFilesystem"]


def test_every_line_of_the_conformance_table_names_a_test_that_there_is() -> None:
    text = (ROOT / "docs" / "clusters.md").read_text().partition("**Not offered**")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    linked = re.compile(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)")
    lines = [row for row in rows if not row.startswith("| who asks")]
    assert len(lines) >= 14
    for row in lines:
        found = linked.findall(row)
        assert found, f"no test: {row}"
        for name, path in found:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (
                f"{path} has no {name}"
            )
