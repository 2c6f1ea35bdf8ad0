"""Versions on disk: damage that is found, files that versions share, leases, what a collection takes and leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from models.errors import Conflict, Corrupt
from models.imports.upkeep import collect, prune
from models.manifest import Manifest
from models.repository import rollouts
from models.repository.repository import Repository
from models.repository.rollouts import Rollout, RolloutLimits
from tests.reports import report
from tests.versions import FACTS, publish, write_weights


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "data")


def inode(repository: Repository, manifest: Manifest, name: str) -> int:
    return (repository.path(manifest) / name).stat().st_ino


def test_versions_share_files_of_equal_content(repository: Repository) -> None:
    one, two = publish(repository, "one"), publish(repository, "two")
    assert inode(repository, one, "config.json") == inode(repository, two, "config.json")
    assert inode(repository, one, "model.safetensors") != inode(repository, two, "model.safetensors")
    other = publish(repository, "one", "other")
    assert inode(repository, one, "model.safetensors") == inode(repository, other, "model.safetensors")
    for manifest in (one, two, other):
        repository.verify(manifest)


def test_a_damaged_shared_file_does_not_reach_a_new_version(repository: Repository) -> None:
    one = publish(repository, "one")
    weights = repository.path(one) / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"E")
    two = publish(repository, "one")
    repository.verify(two)
    three = publish(repository, "one")
    assert inode(repository, two, "model.safetensors") == inode(repository, three, "model.safetensors")
    repository.verify(three)


def test_pruning_takes_what_belongs_to_no_version(repository: Repository) -> None:
    one, two = publish(repository, "one"), publish(repository, "two, longer")
    repository.put_report(two, report(two))
    for manifest in (one, two):
        found = repository.findings_path(manifest)
        found.parent.mkdir(exist_ok=True)
        found.write_text("found out")
        profile = repository.layout.profiles_of("demo", manifest.version) / "profile-1" / "profile.json"
        profile.parent.mkdir(parents=True)
        profile.write_text("{}")
    assert prune(repository) == 0
    elsewhere = repository.layout.profiles_of("demo", "2").rename(repository.layout.data_dir / "elsewhere")
    weights = (repository.path(two) / "model.safetensors").stat().st_size
    repository.delete("demo", "2")
    elsewhere.rename(repository.layout.profiles_of("demo", "2"))  # as a crash amid the deletion leaves it
    freed = prune(repository)
    assert freed == weights + len("found out") + len("{}")
    assert [path.name for path in repository.layout.profiles.glob("demo/*")] == ["1"]
    assert repository.findings_path(one).exists() and not repository.findings_path(two).exists()
    assert {path.name for path in repository.layout.blobs.iterdir()} == {file.sha256 for file in one.files}
    repository.verify(one)


def test_pruning_takes_nothing_of_a_version_whose_manifest_is_damaged(repository: Repository) -> None:
    one = publish(repository, "one")
    repository.put_report(one, report(one))
    found = repository.findings_path(one)
    found.parent.mkdir(exist_ok=True)
    profile = repository.layout.profiles_of("demo", "1") / "profile-1" / "profile.json"
    profile.parent.mkdir(parents=True)
    for path in (found, profile):
        path.write_text("{}")
    manifest = repository.path(one) / "manifest.json"
    manifest.chmod(0o644)
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-9])
    assert prune(repository) == 0
    manifest.write_bytes(whole)
    assert repository.report(one) == report(one) and found.exists() and profile.exists()


def test_another_processs_lease_ends_with_it(repository: Repository, tmp_path: Path) -> None:
    one = publish(repository, "one")
    program = (
        "import sys; from pathlib import Path; from models.repository.repository import Repository\n"
        "repository = Repository(Path(sys.argv[1])); lease = repository.lease(repository.get('demo', '1'))\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(Conflict):
        repository.delete("demo", "1")
    holder.kill()
    holder.wait()
    repository.delete("demo", one.version)


def test_collecting_keeps_what_is_held_used_or_needed(repository: Repository) -> None:
    published = [publish(repository, str(number)) for number in range(1, 6)]
    with repository.stage() as staged:
        write_weights(staged, "child")
        lineage = replace(FACTS.lineage, parent="demo:2", parent_digest=published[1].digest)
        repository.publish(staged, replace(FACTS, lineage=lineage), "demo")
    repository.promote("demo", "production", "1", "held")
    with repository.lease(published[2]):
        collected = collect(repository, keep=1)
    assert collected.versions == ("demo:4", "demo:5")  # 1 is held, 2 a parent, 3 in use, 6 the newest
    assert [each.version for each in repository.versions("demo")] == ["1", "2", "3", "6"]
    assert collect(repository).versions == ()
    with pytest.raises(ValueError, match="at least 0"):
        collect(repository, keep=-1)


def test_collecting_keeps_what_is_on_trial(repository: Repository) -> None:
    parent = publish(repository, "one")
    candidate = made_from(repository, parent, "demo")
    for content in ("three", "four"):
        publish(repository, content)
    repository.promote("demo", "production", "3", "first")
    trial = Rollout("demo", "production", "", candidate.version, 50, True, False, RolloutLimits(), "")
    rollouts.put(repository, trial)
    assert collect(repository, keep=0).versions == ("demo:4",)
    rollouts.end(repository, "demo", "production", "aborted", "slow")
    assert collect(repository, keep=0).versions == ("demo:1", "demo:2")


def made_from(repository: Repository, parent: Manifest, name: str) -> Manifest:
    with repository.stage() as staged:
        write_weights(staged, f"{name}, of {parent.reference}")
        lineage = replace(FACTS.lineage, parent=parent.reference, parent_digest=parent.digest)
        return repository.publish(staged, replace(FACTS, lineage=lineage), name)


def test_collecting_keeps_all_ancestors_of_what_stays(repository: Repository) -> None:
    """Adapter, its 8-bit parent, that one's bf16 parent, and that one's; also under other names."""
    line = [publish(repository, "great-grandparent", "base")]
    for name in ("base", "demo", "adapted"):
        line.append(made_from(repository, line[-1], name))
    for name in ("base", "base", "base", "demo"):
        publish(repository, "newer", name)
    collected = collect(repository, keep=1)
    assert collected.versions == ("base:3", "base:4")
    assert [repository.get(each.name, each.version) for each in line] == line
    collect(repository, keep=0)
    assert repository.models() == []


def test_collecting_keeps_all_ancestors_of_what_is_in_use(repository: Repository) -> None:
    line = [publish(repository, "grandparent")]
    for _ in range(2):
        line.append(made_from(repository, line[-1], "demo"))
    with repository.lease(line[2]):
        assert collect(repository, keep=0).versions == ()
    assert collect(repository, keep=0).versions == ("demo:1", "demo:2", "demo:3")


@pytest.mark.nightly
def test_every_flipped_bit_is_found(repository: Repository) -> None:
    """10,000 of them, over every file of a version."""
    manifest = publish(repository, "weights " * 64)
    directory, draw = repository.path(manifest), Random(1)
    sizes = {path: path.stat().st_size for path in sorted(directory.iterdir())}
    assert {path.name for path in sizes} == {"config.json", "manifest.json", "model.safetensors", "model.yaml"}
    for path, size in sizes.items():
        whole = path.read_bytes()
        path.chmod(0o644)
        for _ in range(10_000 * size // sum(sizes.values()) + 1):
            flipped = bytearray(whole)
            flipped[draw.randrange(size)] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
            with pytest.raises(Corrupt):
                repository.verify(manifest)
        path.write_bytes(whole)
    repository.verify(manifest)


def test_manifests_from_before_the_checksum_are_read(repository: Repository) -> None:
    manifest = publish(repository, "one")
    path = repository.path(manifest) / "manifest.json"
    told = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("checksum", "description")}
    del told["layers"]
    path.chmod(0o644)
    path.write_text(json.dumps(told))
    old = repository.get("demo", "1")
    assert old == replace(manifest, description="", layers=())
    repository.verify(old)
