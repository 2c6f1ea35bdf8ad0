"""An import, a store of versions and a deletion on disks that have some room, too little, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import StoreFull
from models.imports.importing import import_source
from models.imports.upkeep import prune
from models.repository.repository import Repository
from models.repository.store.remote import IDENTITY
from models.repository.store.remotes import remote_of
from service.deployments.routing import as_service_error
from service.evaluation.jobs.worker import _unexpected
from tests import disks
from tests.checkpoints import save_llama
from tests.versions import publish

KIB = 1024


def left(repository: Repository) -> set[str]:
    """What belongs to no version."""
    data_dir = repository.layout.data_dir
    found = {str(path.relative_to(data_dir)): path for path in data_dir.rglob("*") if path.is_file()}
    apart = {name for name in found if name.startswith(("models/", "locks/", "published/"))}
    shared = {name for name, path in found.items() if name.startswith("blobs/") and path.stat().st_nlink > 1}
    return found.keys() - apart - shared | {path.name for path in repository.layout.temporary.iterdir()}


def test_an_import_that_the_disk_has_no_room_for(small_disk: Path, tmp_path: Path) -> None:
    """It publishes the version that it was made of whole, or nothing; the same import goes through with more room."""
    source, outcomes = save_llama(tmp_path / "llama"), list[list[str]]()
    for free in range(0, 240 * KIB, 24 * KIB):
        repository = Repository(small_disk / f"{free}")
        with disks.full(small_disk, free):
            try:
                import_source(repository, str(source), "demo", precision="int8")
            except OSError as error:
                assert _unexpected(error) == "the disk of the data directory is full: make room there"
        versions = repository.versions("demo")
        for manifest in versions:
            repository.verify(manifest)
        assert left(repository) == set()
        outcomes.append([manifest.precision for manifest in versions])
        if len(versions) == 2:
            break
        assert import_source(repository, str(source), "demo", precision="int8").precision == "int8"
        assert left(repository) == set()
    assert outcomes[0] == [] and ["bf16"] in outcomes and outcomes[-1] == ["bf16", "int8"]


def test_deleting_makes_room(small_disk: Path) -> None:
    """Also where `latest` must be written anew, which takes room."""
    repository = Repository(small_disk)
    for content in ("one", "two" * 100_000):
        publish(repository, content)
    repository.promote("demo", "production", "1", "a history that has room for one line more")
    with disks.full(small_disk):
        with pytest.raises(OSError, match="No space"):
            publish(repository, "three")
        repository.delete("demo", "2")
        prune(repository)
        assert publish(repository, "three").version == "3"
    assert (small_disk / "models" / "demo" / "latest").read_text() == "3"
    assert list(repository.layout.temporary.iterdir()) == []


def test_a_store_without_room_says_so_and_keeps_no_part(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64 * KIB))
    remote = remote_of(f"file://{small_disk}/store")
    remote.create(IDENTITY, b"{}")
    with disks.full(small_disk, 8 * KIB):
        for write in (
            lambda: remote.upload("blobs/a", tmp_path / "file"),
            lambda: remote.put("reports/a", bytes(64 * KIB)),
            lambda: remote.create("manifests/a", bytes(64 * KIB)),
        ):
            with pytest.raises(StoreFull) as told:
                write()
            assert as_service_error(told.value).status == 507
    assert [each.path for each in remote.list("")] == [IDENTITY]
    assert list((small_disk / "store" / ".parts").iterdir()) == []
    remote.upload("blobs/a", tmp_path / "file")
