"""`docker/compose.yaml` and what it mounts: by the published schema, by the image's own limits, and by promtool."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
GENERATED = ("./alerts", "./dashboards")
"""What `make dashboards` writes."""
SCHEMA = jsonschema_rs.validator_for(json.loads((ROOT / "tests" / "schemas" / "compose.json").read_text()))


def without_what_is_newer(told: dict[str, Any]) -> dict[str, Any]:
    """Without what the kept schema of 2021 does not know yet: a project's name, `required` (Compose 2.20.2) and configs
    with content (2.23.1)."""
    known = copy.deepcopy(told)
    assert known.pop("name") == "dosirak"
    for config in known["configs"].values():
        assert config.pop("content"), "the head of the file asks for the version that has this"
        config["file"] = "content"
    assert known["services"]["dosirak"]["depends_on"]["postgres"].pop("required") is False
    return known


def errors(told: dict[str, Any]) -> list[str]:
    return [f"{'/'.join(map(str, each.instance_path))}: {each.message}" for each in SCHEMA.iter_errors(told)]


def test_it_is_what_the_published_schema_takes() -> None:
    assert errors(without_what_is_newer(COMPOSE)) == []
    slip = without_what_is_newer(COMPOSE)
    slip["services"]["dosirak"]["stop_grace_periode"] = "40s"
    assert errors(slip)


def test_the_profiles_add_to_the_service_and_the_service_needs_none() -> None:
    profiles = {name: tuple(each.get("profiles", ())) for name, each in SERVICES.items()}
    assert profiles == {"dosirak": (), "postgres": ("postgres",), "prometheus": ("metrics",), "grafana": ("metrics",)}
    assert SERVICES["dosirak"]["depends_on"]["postgres"] == {"condition": "service_healthy", "required": False}


def test_the_container_is_closed_and_has_time_to_end() -> None:
    own = SERVICES["dosirak"]
    assert own["read_only"] and own["tmpfs"] == ["/tmp"] and own["cap_drop"] == ["ALL"]
    grace = int(own["stop_grace_period"].removesuffix("s"))
    assert grace >= Settings.model_fields["drain_seconds"].default + 5
    assert all(port.startswith("127.0.0.1:") for each in SERVICES.values() for port in each.get("ports", ()))


def test_what_it_names_is_there() -> None:
    target = SERVICES["dosirak"]["build"]["target"]
    assert re.search(rf"^FROM \S+ AS {target}$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    names = {name.removeprefix("DOSIRAK_").lower() for name in SERVICES["dosirak"]["environment"]}
    assert names <= set(Settings.model_fields)
    mounts = [mount.split(":")[0] for each in SERVICES.values() for mount in each.get("volumes", ())]
    assert {mount for mount in mounts if not mount.startswith("./")} <= set(COMPOSE["volumes"])
    written = [mount for mount in mounts if mount.startswith("./") and mount not in GENERATED]
    assert written and all((DOCKER / mount).exists() for mount in written)


def test_every_image_has_its_version() -> None:
    images = [each["image"] for each in SERVICES.values()]
    assert all(re.search(r":(?!latest$)\S+$", image) for image in images), images


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    (source,) = yaml.safe_load((DOCKER / "grafana" / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in SERVICES
    (provider,) = yaml.safe_load((DOCKER / "grafana" / "dashboards" / "dosirak.yaml").read_text())["providers"]
    assert f"./dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]


def test_prometheus_takes_its_file(tmp_path: Path) -> None:
    told = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yaml").read_text())
    (job,) = told["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["dosirak:3000"]}]
    (key,) = SERVICES["prometheus"]["configs"]
    assert key["target"] == f"/etc/prometheus/{job['authorization']['credentials_file']}"
    assert "./alerts:/etc/prometheus/alerts:ro" in SERVICES["prometheus"]["volumes"]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (Debian: prometheus)")
    (tmp_path / "admin-key").write_text("key")
    shutil.copy(DOCKER / "prometheus" / "prometheus.yaml", tmp_path)
    done = subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
