"""`docker/Dockerfile`, its locks and its scripts, without building: targets, hashes, what is refused before a build."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from models.imports import starter
from models.imports.starter import WEIGHTS, publish_demo
from models.repository.repository import Repository

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
TARGETS = ("api", "cpu", "cuda", "demo")
PINNED = re.compile(r"^([\w.-]+)==([\w.+]+) \\$", re.MULTILINE)
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$", re.MULTILINE)
sys.path.insert(0, str(DOCKER / "image"))

from trim import unneeded  # noqa: E402


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
