"""The example of an engine on several hosts: by schema, by our names, and closed to everyone else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from tests.kustomize import named, render
from tests.published_schemas import wrong

MANIFESTS = Path(__file__).parents[2] / "docker" / "kubernetes"
FILES = ("kubernetes-1.34.json", "leader-worker-set.json")
NAME = "dosirak-nodes"
OURS = {"app.kubernetes.io/name": NAME}
HEAD = {**OURS, "leaderworkerset.sigs.k8s.io/worker-index": "0"}


@pytest.fixture
def objects() -> list[dict[str, Any]]:
    return render(MANIFESTS / "nodes")


def templates(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    group = named(objects, "LeaderWorkerSet", NAME)["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def errors(objects: list[dict[str, Any]]) -> list[str]:
    """By the schemas; the templates of pods by those of a StatefulSet's."""
    sets = [
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "spec": {"serviceName": "a", "selector": {"matchLabels": OURS}, "template": template},
        }
        for template in templates(objects)
    ]
    return [error for each in (*objects, *sets) for error in wrong(each, FILES)]


def test_every_object_is_what_its_published_schema_takes(objects: list[dict[str, Any]]) -> None:
    kinds = [each["kind"] for each in objects]
    assert sorted(kinds) == ["LeaderWorkerSet", "NetworkPolicy", "NetworkPolicy", "Service"]
    assert errors(objects) == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("LeaderWorkerSet", "spec/leaderWorkerTemplate/restartPolicy", "Never"),
        ("LeaderWorkerSet", "spec/leaderWorkerTemplate/nodes", 2),
        ("LeaderWorkerSet", "spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/comand", ["dosirak"]),
        ("NetworkPolicy", "spec/policyType", ["Ingress"]),
        ("Service", "spec/ports/0/port", "http"),
    ],
)
def test_a_slip_is_found(objects: list[dict[str, Any]], kind: str, path: str, value: object) -> None:
    changed = copy.deepcopy(objects)
    *steps, last = path.split("/")
    at: Any = next(each for each in changed if each["kind"] == kind)
    for step in steps:
        at = at[int(step) if isinstance(at, list) else step]
    at[last] = value
    assert errors(changed), path


def test_the_pods_have_settings_and_the_node_its_rank_and_head(objects: list[dict[str, Any]]) -> None:
    for template in templates(objects):
        (container,) = template["spec"]["containers"]
        variables = {each["name"] for each in container["env"]}
        assert {each.removeprefix("DOSIRAK_").lower() for each in variables} <= set(Settings.model_fields)
        assert {"DOSIRAK_TRUSTED_NETWORK", "DOSIRAK_STORE_URL", "DOSIRAK_DATABASE_URL"} <= variables
        assert template["metadata"]["labels"].items() >= OURS.items()
        assert template["spec"]["enableServiceLinks"] is False
    (node,) = templates(objects)[1]["spec"]["containers"]
    words = "dosirak node --rank $(LWS_WORKER_INDEX) --head $(LWS_LEADER_ADDRESS)"
    assert " ".join(node["command"]) == words
    assert named(objects, "LeaderWorkerSet", NAME)["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "None"


def test_nobody_but_these_pods_reaches_a_port_of_vllms(objects: list[dict[str, Any]]) -> None:
    nodes = named(objects, "NetworkPolicy", NAME)["spec"]
    assert nodes["podSelector"]["matchLabels"] == OURS and set(nodes["policyTypes"]) == {"Ingress", "Egress"}
    assert nodes["ingress"] == [{"from": [{"podSelector": {"matchLabels": OURS}}]}]
    assert nodes["egress"][0] == {"to": [{"podSelector": {"matchLabels": OURS}}]}
    assert all(rule.get("ports") for rule in nodes["egress"][1:])
    clients = named(objects, "NetworkPolicy", "dosirak-nodes-clients")["spec"]
    assert clients["podSelector"]["matchLabels"] == HEAD == named(objects, "Service", NAME)["spec"]["selector"]
    (rule,) = clients["ingress"]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
