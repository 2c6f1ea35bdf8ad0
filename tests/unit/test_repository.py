"""Versions, aliases and their history on a temporary path, seen by us and by BentoML's own command."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from models.errors import Conflict, Corrupt, InvalidReference, NotFound, Stale, Unreachable
from models.imports.starter import demo_is_wanted
from models.imports.upkeep import sweep
from models.manifest import Manifest
from models.repository.disk import durable
from models.repository.repository import Repository
from tests.reports import report
from tests.unit.test_manifest import TRAVERSAL
from tests.versions import FACTS, publish


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "data", lock_timeout=60)


def weights(repository: Repository, manifest: Manifest) -> Path:
    return repository.path(manifest) / "model.safetensors"


def test_publish_and_read_back(repository: Repository) -> None:
    manifest = publish(repository, "one")
    assert manifest.reference == "demo:1"
    assert repository.get("demo", "1") == manifest
    assert repository.models() == ["demo"]
    assert weights(repository, manifest).read_bytes().endswith(b"one")
    assert [file.path for file in manifest.files] == ["config.json", "model.safetensors"]
    for path in repository.path(manifest).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o444, path.name


def test_versions_count_up_and_are_exact(repository: Repository) -> None:
    for number in range(1, 12):
        assert publish(repository, str(number)).version == str(number)
    assert [manifest.version for manifest in repository.versions("demo")] == [str(n) for n in range(1, 12)]
    repository.delete("demo", "1")
    with pytest.raises(NotFound):
        repository.get("demo", "1")  # BentoML's store would answer with 10 or 11


def test_order_survives_a_clock_set_back(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    class Yesterday(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(2020, 1, 1, tzinfo=UTC)

    publish(repository, "first")
    monkeypatch.setattr("models.repository.repository.datetime", Yesterday)
    publish(repository, "second")
    assert [manifest.version for manifest in repository.versions("demo")] == ["1", "2"]


def test_a_version_is_never_replaced_nor_reused(repository: Repository) -> None:
    publish(repository, "one", version="v1")
    with pytest.raises(Conflict, match="another version"):
        publish(repository, "two", version="v1")
    assert weights(repository, repository.get("demo", "v1")).read_bytes().endswith(b"one")
    publish(repository, "numbered")
    repository.delete("demo", "1")
    assert publish(repository, "next").version == "2"
    repository.delete("demo", "v1")
    with pytest.raises(Conflict):
        publish(repository, "again", version="v1")
    with pytest.raises(Conflict):
        publish(repository, "latest", version="latest")


@pytest.mark.parametrize("kind", ["link", "directory", "hidden", "ours", "empty"])
def test_only_plain_files_are_published(repository: Repository, kind: str) -> None:
    with repository.stage() as staged:
        if kind == "link":
            (staged / "config.json").symlink_to("/etc/hostname")
        elif kind == "directory":
            (staged / "sub").mkdir()
        elif kind in ("hidden", "ours"):
            (staged / {"hidden": ".x", "ours": "manifest.json"}[kind]).write_text("{}")
        with pytest.raises(Conflict):
            repository.publish(staged, FACTS, "demo")
    assert repository.models() == []


def test_verify_reads_the_manifest_itself_again(repository: Repository) -> None:
    """Damage that leaves a file's size and times as they were, as a disk does it."""
    manifest = repository.get("demo", publish(repository, "one").version)
    path = repository.path(manifest) / "manifest.json"
    before, content = path.stat(), path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content.replace(b'"created_at": "2', b'"created_at": "3'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Corrupt, match="checksum"):
        repository.verify(manifest)


def test_verify_names_the_damaged_file(repository: Repository) -> None:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[1] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)

    damages: list[tuple[str, Callable[[Path], object]]] = [
        ("model.safetensors", lambda directory: flip(directory / "model.safetensors")),
        ("config.json", lambda directory: (directory / "config.json").unlink()),
        ("extra.py", lambda directory: (directory / "extra.py").write_text("x")),
        ("model.yaml is missing", lambda directory: (directory / "model.yaml").unlink()),
    ]
    for named, damage in damages:
        manifest = publish(repository, "four")
        repository.verify(manifest)
        damage(repository.path(manifest))
        with pytest.raises(Corrupt, match=named):
            repository.verify(manifest)


def test_broken_directories_are_ignored(repository: Repository, tmp_path: Path) -> None:
    manifest = publish(repository, "one")
    models = tmp_path / "data" / "models"
    (models / "demo" / "2").mkdir()
    (models / "demo" / "3").mkdir()
    (models / "demo" / "3" / "manifest.json").write_text("{")
    (models / "demo" / "4").mkdir()
    (models / "demo" / "4" / "manifest.json").write_text(manifest.to_json())  # says that it is demo:1
    (models / "Not A Tag").mkdir()
    (models / "empty").mkdir()
    assert repository.versions("demo") == [manifest]
    assert repository.models() == ["demo"]
    for version in ("3", "4"):
        with pytest.raises(Corrupt):
            repository.get("demo", version)
    assert publish(repository, "next").version == "5"


def test_resolve(repository: Repository) -> None:
    with pytest.raises(NotFound, match="demo"):
        repository.resolve("demo")
    first, second = publish(repository, "one"), publish(repository, "two")
    assert repository.resolve("demo") == second
    repository.promote("demo", "production", "1", "stable")
    repository.promote("demo", "canary", "2", "try it")
    assert repository.resolve("demo") == repository.resolve("demo@production") == first
    assert repository.resolve("demo:2") == repository.resolve("demo@canary") == second
    for missing in ("demo:3", "demo@staging", "other", "demo:latest"):
        with pytest.raises(NotFound):
            repository.resolve(missing)


def test_no_name_leaves_the_store(repository: Repository, tmp_path: Path) -> None:
    publish(repository, "one")  # and with it the lock of this name
    attempts: list[Callable[[str], object]] = [
        repository.resolve,
        lambda text: repository.get(text, "1"),
        lambda text: repository.get("demo", text),
        repository.versions,
        repository.aliases,
        lambda text: repository.promote("demo", text, "1", ""),
        lambda text: repository.promote("demo", "production", text, ""),
        lambda text: repository.history("demo", text),
        lambda text: repository.delete("demo", text),
        lambda text: repository.delete(text, "1"),
        lambda text: publish(repository, "x", name=text),
        lambda text: publish(repository, "x", version=text),
    ]
    before = sorted(tmp_path.rglob("*"))
    for text in TRAVERSAL:
        for attempt in attempts:
            with pytest.raises(InvalidReference):
                attempt(text)
        assert sorted(tmp_path.rglob("*")) == before, text


def test_promote_is_compare_and_set(repository: Repository) -> None:
    publish(repository, "one")
    publish(repository, "two")
    repository.promote("demo", "production", "1", "first", actor="kim", expected="")
    for wrong in ("", "2"):
        with pytest.raises(Stale):
            repository.promote("demo", "production", "2", "late", expected=wrong)
    entry = repository.promote("demo", "production", "2", "better", actor="lee", expected="1")
    assert (entry.version, entry.previous, entry.reason, entry.actor) == ("2", "1", "better", "lee")
    assert repository.promote("demo", "production", "2", "again") == entry
    assert len(repository.history("demo", "production")) == 2
    with pytest.raises(NotFound):
        repository.promote("demo", "production", "3", "missing")
    assert repository.aliases("demo") == {"production": "2"}


def test_concurrent_promotions_have_one_winner(repository: Repository) -> None:
    for number in range(8):
        publish(repository, str(number))
    start = threading.Barrier(8)

    def race(version: int) -> bool:
        start.wait()
        try:
            repository.promote("demo", "production", str(version), "race", expected="")
        except Stale:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(1, 9)))
    assert sum(won) == 1
    assert repository.aliases("demo") == {"production": str(won.index(True) + 1)}


def test_rollback_goes_back_step_by_step(repository: Repository) -> None:
    for number in range(1, 5):
        publish(repository, str(number))
        repository.promote("demo", "production", str(number), "newer")
    assert repository.rollback("demo", "production", "bad").version == "3"
    repository.delete("demo", "2")
    assert repository.rollback("demo", "production", "worse").version == "1"
    with pytest.raises(Conflict):
        repository.rollback("demo", "production", "nothing left")
    repository.promote("demo", "production", "4", "fixed")
    assert repository.rollback("demo", "production", "or not").version == "1"
    with pytest.raises(Stale):
        repository.rollback("demo", "production", "late", expected="4")


def test_removed_alias_comes_back_by_rollback(repository: Repository) -> None:
    publish(repository, "one")
    repository.promote("demo", "production", "1", "go")
    repository.remove_alias("demo", "production", "stop")
    assert repository.aliases("demo") == {}
    with pytest.raises(NotFound):
        repository.remove_alias("demo", "production", "stop")
    assert repository.rollback("demo", "production", "go on").version == "1"


def test_history_says_what_was_in_production_then(repository: Repository) -> None:
    publish(repository, "one")
    publish(repository, "two")
    first = repository.promote("demo", "production", "1", "a")
    second = repository.promote("demo", "production", "2", "b")
    repository.promote("demo", "canary", "2", "c")
    assert repository.history("demo", "production") == [first, second]
    moment = datetime.fromisoformat(first.time)
    assert repository.history("demo", "production", moment) == [first]
    assert repository.history("demo", "production", moment - timedelta(microseconds=1)) == []
    assert repository.history("demo", "production", datetime.fromisoformat(second.time)) == [second]


def test_torn_journal_line_is_ignored_and_repaired(repository: Repository, tmp_path: Path) -> None:
    publish(repository, "one")
    publish(repository, "two")
    repository.promote("demo", "production", "1", "a")
    journal = tmp_path / "data" / "journal" / "demo.jsonl"
    line = journal.read_bytes()
    for cut in (1, 20, len(line) - 1):
        journal.write_bytes(line + line[:cut])
        assert repository.aliases("demo") == {"production": "1"}
    repository.promote("demo", "production", "2", "b")
    assert [json.loads(text)["version"] for text in journal.read_text().splitlines()] == ["1", "2"]
    journal.write_bytes(b"{}\n" + line)
    with pytest.raises(Corrupt, match="Line 1"):
        repository.aliases("demo")


def test_delete(repository: Repository, tmp_path: Path) -> None:
    publish(repository, "one")
    publish(repository, "two")
    repository.promote("demo", "production", "2", "go")
    with pytest.raises(Conflict, match="production"):
        repository.delete("demo", "2")
    repository.delete("demo", "1", reason="old")
    with pytest.raises(NotFound):
        repository.delete("demo", "1")
    assert [manifest.version for manifest in repository.versions("demo")] == ["2"]
    assert list((tmp_path / "data" / "tmp").iterdir()) == []


def test_a_sweep_that_is_quicker_than_a_deletion_leaves_nothing_of_the_version(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = publish(repository, "one")
    repository.put_report(manifest, report(manifest))
    (repository.layout.profiles_of("demo", "1") / "p1").mkdir(parents=True)
    sync = durable.sync

    def swept(path: Path) -> None:
        for gone in repository.layout.temporary.glob("gone-*"):
            shutil.rmtree(gone)
        sync(path)

    monkeypatch.setattr("models.repository.repository.durable.sync", swept)
    repository.delete("demo", "1")
    assert not repository.layout.report("demo", "1").exists()
    assert not repository.layout.profiles_of("demo", "1").exists()


def test_a_lease_that_the_shared_records_do_not_take_is_released(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = publish(repository, "one")

    def lease(name: str, version: str) -> Callable[[], None]:
        raise Unreachable("The shared records cannot be had now")

    with monkeypatch.context() as patched:
        patched.setattr(repository.records, "lease", lease)
        with pytest.raises(Unreachable):
            repository.lease(manifest)
    repository.delete("demo", "1")


def test_sweep_spares_the_living(repository: Repository, tmp_path: Path) -> None:
    temporary = tmp_path / "data" / "tmp"
    (temporary / "stage-dead").mkdir()
    (temporary / "not-ours").mkdir()
    with repository.stage() as staged:
        for path in temporary.iterdir():
            os.utime(path, (0, 0))
        assert sweep(repository, older_than=3600) == ["stage-dead"]
        assert staged.is_dir()
    (temporary / "gone-now").mkdir()
    assert sweep(repository, older_than=3600) == []
    assert sorted(path.name for path in temporary.iterdir()) == ["gone-now", "not-ours"]


def test_a_version_can_be_loaded_from_the_moment_that_it_is_seen(repository: Repository) -> None:
    """Its maker holds its own lock a little longer: until then it cannot be deleted, and that is all."""
    with repository.stage() as staged:
        (staged / "config.json").write_text("{}")
        manifest = repository.publish(staged, FACTS, "demo")
        repository.lease(manifest).release()
        with pytest.raises(Conflict, match="in use"):
            repository.delete("demo", "1")
    repository.delete("demo", "1")


def test_a_held_lock_is_a_conflict_not_a_hang(tmp_path: Path) -> None:
    from models.repository.disk.durable import locked

    repository = Repository(tmp_path, lock_timeout=0.1)
    with locked(tmp_path / "locks" / "demo.lock", 1), pytest.raises(Conflict, match="try again"):
        publish(repository, "one")
    assert publish(repository, "one").version == "1"


def test_bentoml_sees_the_same_versions(repository: Repository, tmp_path: Path) -> None:
    publish(repository, "one")
    second = publish(repository, "two")
    publish(repository, "three", name="other", version="v1.0")

    def bentoml(*arguments: str) -> str:
        environment = {**os.environ, "BENTOML_HOME": str(tmp_path / "data"), "BENTOML_DO_NOT_TRACK": "true"}
        command = [str(Path(sys.executable).with_name("bentoml")), "models", *arguments, "-o", "json"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout

    assert {row["tag"] for row in json.loads(bentoml("list"))} == {"demo:1", "demo:2", "other:v1.0"}
    got = json.loads(bentoml("get", "demo"))
    assert (got["version"], got["labels"]["digest"]) == ("2", second.short_digest)


def test_the_demo_model_is_wanted_until_it_is_whole(tmp_path: Path) -> None:
    """Also after a crash between its two versions; not beside a model of the user's own."""
    mine, fresh = Repository(tmp_path / "mine"), Repository(tmp_path / "fresh")
    assert demo_is_wanted(fresh)
    publish(fresh, "one")
    assert demo_is_wanted(fresh)
    fresh.promote("demo", "production", "1", "a test")
    assert not demo_is_wanted(fresh)
    publish(mine, "one", name="mine")
    assert not demo_is_wanted(mine)
