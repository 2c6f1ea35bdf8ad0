"""A version as one file, there and back; and archives that are refused, named."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.errors import Conflict, InvalidSource
from models.imports.importing import import_source
from models.repository import archive
from models.repository.archive import export
from models.repository.repository import Repository
from models.weights.quantize import quantize
from tests.checkpoints import save_llama
from tests.reports import report


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "data")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def test_an_exported_8_bit_version_comes_back_byte_for_byte(
    repository: Repository, llama: Path, tmp_path: Path
) -> None:
    small = quantize(repository, import_source(repository, str(llama), "tiny"))
    repository.put_report(small, report(small))
    size = export(repository, small, tmp_path / "tiny.tar")
    assert size == (tmp_path / "tiny.tar").stat().st_size
    with pytest.raises(Conflict, match="exists"):
        export(repository, small, tmp_path / "tiny.tar")
    elsewhere = Repository(tmp_path / "elsewhere")
    back = import_source(elsewhere, str(tmp_path / "tiny.tar"), "other", "7")
    assert (back.digest, back.reference, back.lineage) == (small.digest, "other:7", small.lineage)
    assert elsewhere.report(back) == report(small)
    elsewhere.verify(back)
    with pytest.raises(InvalidSource, match="exported int8"):
        import_source(elsewhere, str(tmp_path / "tiny.tar"), "other", precision="bf16")


def test_an_export_is_on_the_disk_before_it_has_its_name(
    repository: Repository, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = import_source(repository, str(llama), "tiny")
    target, real, synced = tmp_path / "tiny.tar", os.fsync, list[tuple[str, bool]]()

    def sync(descriptor: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), target.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    export(repository, manifest, target)
    assert synced[-2:] == [(str(tmp_path / ".tiny.tar.part"), False), (str(tmp_path), True)]


def test_bentomls_export_comes_back_too(repository: Repository, llama: Path, tmp_path: Path) -> None:
    small = quantize(repository, import_source(repository, str(llama), "tiny"))
    environment = {
        "BENTOML_HOME": str(tmp_path / "data"),
        "BENTOML_DO_NOT_TRACK": "true",
        "PATH": "",
        "HOME": str(tmp_path),
    }
    target = tmp_path / "tiny.bentomodel"
    command = [sys.executable, "-m", "bentoml", "models", "export", "tiny:2", str(target)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert import_source(Repository(tmp_path / "elsewhere"), str(target), "tiny").digest == small.digest
    environment["BENTOML_HOME"] = str(tmp_path / "theirs")
    Repository(tmp_path / "theirs")
    subprocess.run([*command[:4], "import", str(target)], env=environment, check=True, capture_output=True)
    theirs = Repository(tmp_path / "theirs")
    theirs.verify(theirs.get("tiny", "2"))


def test_a_plain_checkpoint_in_an_archive_is_imported(repository: Repository, llama: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "llama.tar.gz", "w:gz") as archive:
        archive.add(llama, "llama")
    manifest = import_source(repository, str(tmp_path / "llama.tar.gz"), "tiny")
    assert manifest.lineage.source == "archive llama.tar.gz"
    assert manifest.digest == import_source(repository, str(llama), "tiny").digest


def test_a_changed_byte_in_an_export_is_refused_by_name(repository: Repository, llama: Path, tmp_path: Path) -> None:
    manifest = import_source(repository, str(llama), "tiny")
    export(repository, manifest, tmp_path / "tiny.tar")
    content = bytearray((tmp_path / "tiny.tar").read_bytes())
    with tarfile.open(tmp_path / "tiny.tar") as archive:
        at = archive.getmember("model.safetensors").offset_data
    content[at + 2000] ^= 1
    (tmp_path / "tiny.tar").write_bytes(content)
    with pytest.raises(InvalidSource, match=r"model\.safetensors"):
        import_source(repository, str(tmp_path / "tiny.tar"), "tiny")
    assert len(repository.versions("tiny")) == 1


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    about = tarfile.TarInfo(name)
    about.type, about.linkname = kind, link
    return about


@pytest.mark.parametrize(
    "members",
    [
        [member("../config.json")],
        [member("/config.json")],
        [member("a/b/config.json")],
        [member("config.json"), member("config.json")],
        [member("a/config.json"), member("b/model.safetensors")],
        [member("config.json", tarfile.SYMTYPE, "/etc/passwd")],
        [member("config.json", tarfile.LNKTYPE, "x")],
        [member("config.json", tarfile.CHRTYPE)],
        [member("config.json", tarfile.FIFOTYPE)],
        [member(".hidden")],
        [],
    ],
    ids=lambda members: ", ".join(f"{each.name} {each.type!r}" for each in members) or "empty",
)
def test_odd_archives_are_refused(repository: Repository, tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    path = tmp_path / "odd.tar"
    with tarfile.open(path, "w") as archive:
        for each in members:
            archive.addfile(each, io.BytesIO())
    before = sorted(str(each) for each in tmp_path.rglob("*"))
    with pytest.raises(InvalidSource, match=r"odd\.tar|no source"):
        import_source(repository, str(path), "tiny")
    assert sorted(str(each) for each in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("total", "kept"), [(1 << 40, 1 << 30), (1 << 30, (1 << 30) // 10)])
def test_an_archive_leaves_a_reserve_of_the_disk(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, kept: int
) -> None:
    path, disk = tmp_path / "one.tar", SimpleNamespace(total=total, free=kept + 1000)
    monkeypatch.setattr(archive, "shutil", SimpleNamespace(copyfileobj=shutil.copyfileobj, disk_usage=lambda _: disk))
    for size, is_refused in ((1000, False), (1001, True)):
        (tmp_path / "out").mkdir()
        with tarfile.open(path, "w") as writing:
            about = tarfile.TarInfo("config.json")
            about.size = size
            writing.addfile(about, io.BytesIO(b" " * size))
        with pytest.raises(InvalidSource, match="room for") if is_refused else nullcontext():
            archive.unpack(path, tmp_path / "out")
        assert len(list((tmp_path / "out").iterdir())) == (not is_refused)
        shutil.rmtree(tmp_path / "out")


def test_a_truncated_archive_is_refused(repository: Repository, llama: Path, tmp_path: Path) -> None:
    export(repository, import_source(repository, str(llama), "tiny"), tmp_path / "tiny.tar")
    whole = (tmp_path / "tiny.tar").read_bytes()
    (tmp_path / "tiny.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidSource, match="damaged"):
        import_source(repository, str(tmp_path / "tiny.tar"), "tiny")
