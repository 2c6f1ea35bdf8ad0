"""The files of docker/: Dockerfile, locks and scripts, without building; compose.yaml and what it mounts, by the
published schema, by the image's own limits, and by promtool."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from packaging.utils import canonicalize_name

from models.imports import starter
from models.imports.starter import WEIGHTS, publish_demo
from models.repository.repository import Repository
from service.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
TARGETS = ("api", "cpu", "cuda", "demo")
PINNED = re.compile(r"^([\w.-]+)==([\w.+]+) \\$", re.MULTILINE)
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$", re.MULTILINE)
sys.path.insert(0, str(DOCKER / "image"))

from trim import unneeded  # noqa: E402

COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
GENERATED = ("./alerts", "./dashboards")
"""What `make dashboards` writes."""
SCHEMA = jsonschema_rs.validator_for(json.loads((ROOT / "tests" / "schemas" / "compose.json").read_text()))


def stages() -> dict[str, tuple[str, str]]:
    """Each stage's base and its text."""
    parts = re.split(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, flags=re.MULTILINE)[1:]
    return {name or "default": (base, text) for base, name, text in zip(*[iter(parts)] * 3, strict=True)}


def lines_of(stage: str) -> str:
    """The text of a stage and of those that it is built on."""
    found, text = stages(), ""
    while stage in found:
        stage, text = found[stage][0], found[stage][1] + text
    return text


def pins(*names: str) -> dict[str, str]:
    texts = [(DOCKER / "locks" / f"{name}.lock").read_text() for name in names]
    return {canonicalize_name(name): version for text in texts for name, version in PINNED.findall(text)}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_closed(target: str) -> None:
    text = lines_of(target)
    assert "apt-get" not in text and "pip" not in text.replace("pipe", ""), "its stages install nothing"
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1] == "10001:10001"
    for line in ("VOLUME /data", "STOPSIGNAL SIGTERM", 'ENTRYPOINT ["/usr/bin/tini", "-s", "--", "dosirak"]'):
        assert line in text
    assert "/opt/dosirak/sbom.json" in text and "compile.py" in text
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in text
    assert lines_of("root").count("COPY --from=os / /") == 1 and stages()["root"][0] == "scratch", "one layer"


def test_the_targets_have_the_torch_that_they_are_for() -> None:
    bases = {"api": "site-api", "cpu": "site-cpu", "demo": "site-cpu", "cuda": "site-cuda"}
    for target, site in bases.items():
        assert f"COPY --from={site} /opt/dosirak" in lines_of(target)
    assert "torch" not in pins("api", "engine") and not {"transformers", "accelerate"} & set(pins("api"))
    assert pins("torch-cpu")["torch"] == f"{pins('torch-cuda')['torch']}+cpu"
    assert {"nvidia-cublas", "triton"} <= set(pins("torch-cuda")) and set(pins("torch-cpu")) == {"torch"}


def test_the_locks_are_the_requirements_with_hashes() -> None:
    """After a change of requirements.txt: docker/locks/make.sh."""
    wanted = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    }
    build_only = {"setuptools"}
    assert pins("api", "engine") | {"torch": pins("torch-cuda")["torch"]} == {
        name: version for name, version in wanted.items() if name not in build_only
    }
    assert not set(pins("api")) & set(pins("engine"))
    for lock in (DOCKER / "locks").glob("*.lock"):
        text = lock.read_text()
        described = [line for line in text.splitlines() if not line.startswith("#") and not PINNED.match(line + "\n")]
        assert described and all(HASH.match(line) for line in described), lock.name
        assert "://" not in text, "where packages come from is each machine's own"
    for step in re.findall(r"^RUN .*?[^\\]$", DOCKERFILE, re.MULTILINE | re.DOTALL):
        if "install ${PIP_OPTIONS}" in step:
            assert "--require-hashes" in step and "--only-binary :all:" in step, step


def test_what_an_import_needs_is_not_trimmed(tmp_path: Path) -> None:
    gone = ("torch/test/a.py", "torch/bin/protoc", "torch/lib/libx.a", "sympy/core/tests/t.py", "numpy/a.pyi")
    kept = ("torch/bin/torch_shm_manager", "torch/__init__.py", "service/engine/runner/native/src/a.cpp", "triton/b.c")
    for name in (*gone, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    removed = set(unneeded(tmp_path))
    assert all({tmp_path / name, *(tmp_path / name).parents} & removed for name in gone), removed
    assert not [name for name in kept if {tmp_path / name, *(tmp_path / name).parents} & removed]


def test_the_healthcheck_is_a_program(tmp_path: Path) -> None:
    command = re.search(r"^HEALTHCHECK .*?CMD (\[.*?\])$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert command is not None
    program, flag, text = json.loads(command[1])
    assert (program, flag) == ("python3", "-c")
    done = subprocess.run([sys.executable, "-c", text], env={"DOSIRAK_PORT": "9"}, capture_output=True, timeout=30)
    assert done.returncode == 1 and b"refused" in done.stderr


def test_baked_versions_are_copied_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Repository(tmp_path / "first")
    original, small = publish_demo(first, WEIGHTS)
    baked = tmp_path / "versions"
    for version in (original, small):
        target = baked / version.version
        target.mkdir(parents=True)
        for file in first.path(version).iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(starter, "BAKED", baked)
    monkeypatch.setitem(sys.modules, "models.weights.quantize", None)  # whoever converts fails
    again = publish_demo(Repository(tmp_path / "second"), WEIGHTS)
    assert [each.digest for each in again] == [original.digest, small.digest]
    assert again[1].lineage == small.lineage and Repository(tmp_path / "second").report(again[1]) is not None


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
