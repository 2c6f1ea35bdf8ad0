"""Two repositories with data directories of their own share aliases, rollouts and leases through one PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from pydantic import SecretStr

from models.errors import Conflict, NotFound, RepositoryError, Stale, Unreachable
from models.repository import rollouts
from models.repository.disk.layout import Layout
from models.repository.repository import Repository
from models.repository.rollouts import Rollout, RolloutLimits
from service.settings import Settings
from service.storage.records import Identity, SharedRecords, leave, open_repository, shared
from service.storage.records.link import Link
from service.storage.records.presence import LIVING_SECONDS, clock_error
from tests import postgres
from tests.sessions import needs_postgresql
from tests.versions import publish
from tests.waiting import SECONDS

pytestmark = needs_postgresql
Open = Callable[..., Repository]


@pytest.fixture
def url() -> str:
    return postgres.server().new_database()


@pytest.fixture
def opened(tmp_path: Path, url: str) -> Iterator[Open]:
    """Opens the repository of an instance, by name."""
    made: list[SharedRecords] = []

    def open_(name: str, role: str = "server", **options: object) -> Repository:
        layout = Layout(tmp_path / name)
        layout.make()
        records = SharedRecords(url, layout, Identity(role, "1.0"), **options)  # type: ignore[arg-type]
        made.append(records)
        records.wait()
        return Repository(tmp_path / name, records=records)

    yield open_
    for each in made:
        each.close()


def within(is_so: Callable[[], bool], seconds: float = SECONDS) -> float:
    """Waits until it is so. Returns how long that took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        time.sleep(0.005)
    return time.monotonic() - began


def records_of(repository: Repository) -> SharedRecords:
    assert isinstance(repository.records, SharedRecords)
    return repository.records


@pytest.fixture
def pair(opened: Open) -> tuple[Repository, Repository]:
    """Two instances that both hold the versions 1, 2 and 3."""
    one, two = opened("one"), opened("two")
    for repository in (one, two):
        for version in ("1", "2", "3"):
            publish(repository, version, version=version)
    return one, two


def test_a_move_is_seen_by_the_other_at_once(pair: tuple[Repository, Repository]) -> None:
    one, two = pair
    taken = []
    for number in range(20):
        mover, reader = (one, two) if number % 2 else (two, one)
        version = str(number % 3 + 1)
        mover.promote("demo", "production", version, "a move")
        assert mover.resolve("demo").version == version
        taken.append(within(lambda: reader.resolve("demo").version == version))  # noqa: B023
    assert median(taken) < 0.5  # told, not found by the look of every second
    assert [entry.version for entry in one.history("demo", "production")] == [str(n % 3 + 1) for n in range(20)]
    assert one.history("demo", "production") == two.history("demo", "production")


def test_compare_and_set_has_one_winner(pair: tuple[Repository, Repository]) -> None:
    one, _ = pair
    one.promote("demo", "production", "1", "a start")
    start = threading.Barrier(8)

    def race(number: int) -> str:
        repository, version = pair[number % 2], "2" if number % 4 < 2 else "3"
        start.wait()
        try:
            repository.promote("demo", "production", version, f"racer {number}", expected="1")
        except Stale:
            return "stale"
        return "won"

    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert sorted(pool.map(race, range(8))) == ["stale"] * 7 + ["won"]
            one.promote("demo", "production", "1", "back")
    entries = one.history("demo", "production")
    assert all(entry.previous == before.version for before, entry in pairwise(entries))


def test_a_version_that_another_uses_cannot_be_deleted(
    pair: tuple[Repository, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "LEASE_SECONDS", 60.0)
    one, two = pair
    lease = one.lease(one.get("demo", "3"))
    with pytest.raises(Conflict, match=f"in use by instance {records_of(one).identity.id}"):
        two.delete("demo", "3")
    assert two.get("demo", "3")
    lease.release()

    def is_deleted() -> bool:
        try:
            two.delete("demo", "3")
        except Conflict:
            return False
        return True

    within(is_deleted)
    within(lambda: "3" not in [each.version for each in one.versions("demo")])
    with pytest.raises(NotFound):
        one.get("demo", "3")  # its files are still here


def test_a_lease_on_a_deleted_version_is_refused(
    pair: tuple[Repository, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "LEASE_SECONDS", 60.0)
    one, two = pair
    found = one.get("demo", "3")
    two.delete("demo", "3")
    with pytest.raises(NotFound):
        one.lease(found)


def test_calls_that_a_close_finds_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process ends with its threads: one that waited for ever would keep it."""

    async def look(link: Link) -> None: ...

    async def refresh(link: Link) -> None:
        begun.set()
        await asyncio.sleep(600)

    begun = threading.Event()
    monkeypatch.setattr(Link, "_look", look)
    monkeypatch.setattr(Link, "refresh", refresh)
    layout = Layout(tmp_path)
    layout.make()
    records = SharedRecords("postgresql+asyncpg://a:b@127.0.0.1:1/x", layout, Identity("server", "1.0"))
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(records.refresh)
        assert begun.wait(60)
        records.close()
        with pytest.raises(Unreachable):
            calling.result(60)
    with pytest.raises(Unreachable):
        records.refresh()


async def test_a_lease_that_is_taken_while_a_heartbeat_writes_those_of_before_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, writing, may, told = set[tuple[str, str]](), asyncio.Event(), asyncio.Event(), list[str]()

    async def beat(*_: object) -> bool:
        return False

    async def put_leases(_connection: object, _id: str, held: list[tuple[str, str]]) -> None:
        writing.set()
        await may.wait()
        there.clear()
        there.update(held)

    async def tell(link: Link, name: str, version: str) -> bool:
        told.append(f"{name}:{version}")
        return True

    monkeypatch.setattr("service.storage.records.link.statements.beat", beat)
    monkeypatch.setattr("service.storage.records.link.statements.put_leases", put_leases)
    monkeypatch.setattr(Link, "_tell_lease", tell)
    link = Link("postgresql+asyncpg://a@b/c", tmp_path, Identity("server", "1"), adopt=list, on_mirror=lambda _: None)
    link.reachable, link._held_there = True, {("demo", "1")}
    beating = asyncio.create_task(link._beat(None))  # type: ignore[arg-type]
    await writing.wait()
    await link.lease("demo", "1")
    may.set()
    await beating
    assert told == ["demo:1"] and not there


HOLDER = """
import sys, time
from pathlib import Path
from models.repository.repository import Repository
from models.repository.disk.layout import Layout
from service.storage.records import Identity, SharedRecords, leave, open_repository
from service.storage.records import shared
shared.LEASE_SECONDS = 60.0
layout = Layout(Path(sys.argv[2]))
repository = Repository(layout.data_dir, records=SharedRecords(sys.argv[1], layout, Identity("server", "1.0")))
repository.records.wait()
lease = repository.lease(repository.get("demo", "2"))
print(repository.records.identity.id, flush=True)
time.sleep(60)
"""


def test_the_leases_of_a_killed_instance_end(pair: tuple[Repository, Repository], url: str, tmp_path: Path) -> None:
    _, two = pair
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url, str(tmp_path / "one")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout
        its_id = holder.stdout.readline().strip()
        with pytest.raises(Conflict, match="in use"):
            two.delete("demo", "2")
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()

    def is_deleted() -> bool:
        try:
            two.delete("demo", "2")
        except Conflict:
            return False
        return True

    assert not is_deleted(), "it was heard a moment ago"
    silent = f"UPDATE instances SET beat_at = beat_at - interval '{LIVING_SECONDS} seconds' WHERE id = '{its_id}'"
    postgres.server().sql(silent, url.partition("?")[0].rpartition("/")[2])
    within(is_deleted)


def test_without_the_database_reads_go_on_and_changes_are_refused(tmp_path: Path) -> None:
    server = postgres.Server()
    made = []
    try:
        url = server.new_database()

        def opened(name: str) -> Repository:
            layout = Layout(tmp_path / name)
            layout.make()
            made.append(SharedRecords(url, layout, Identity("server", "1.0")))
            made[-1].wait()
            return Repository(tmp_path / name, records=made[-1])

        one, two = opened("one"), opened("two")
        for repository in (one, two):
            publish(repository, "1")
            publish(repository, "2")
        one.promote("demo", "production", "1", "")
        within(lambda: two.aliases("demo") == {"production": "1"})
        server.stop()
        for _ in range(2):
            with pytest.raises(Unreachable, match="cannot be had now"):
                one.promote("demo", "production", "2", "")
        lease = two.lease(two.resolve("demo"))  # told later
        assert one.resolve("demo").version == two.resolve("demo").version == "1"
        assert one.models() == ["demo"] and len(one.versions("demo")) == 2
        publish(Repository(tmp_path / "bare"), "1")
        made.append(SharedRecords(url, Layout(tmp_path / "bare"), Identity("server", "1.0")))
        with pytest.raises(Unreachable):  # it has no copy
            Repository(tmp_path / "bare", records=made[-1]).models()
        late = opened("two")  # a start without the database has the copy
        assert late.resolve("demo").version == "1"
        server.start()
        within(lambda: all(records_of(each).is_reachable for each in (one, two, late)))
        one.promote("demo", "production", "2", "")
        within(lambda: two.resolve("demo").version == late.resolve("demo").version == "2")
        with pytest.raises(Conflict, match="in use"):
            one.delete("demo", "1")
        lease.release()
    finally:
        for each in made:
            each.close()
        server.remove()


def test_an_empty_database_takes_what_a_directory_has(opened: Open, tmp_path: Path) -> None:
    alone = Repository(tmp_path / "one")
    publish(alone, "1")
    publish(alone, "2")
    alone.promote("demo", "production", "1", "alone")
    wanted = Rollout("demo", "production", "", "2", 30, True, False, RolloutLimits(), "")
    rollouts.put(alone, wanted)
    one = opened("one")
    assert one.history("demo", "production") == alone.history("demo", "production")
    assert rollouts.history(one, "demo", "production") == rollouts.history(alone, "demo", "production")
    other = Repository(tmp_path / "two")
    publish(other, "1", "chat")
    other.promote("chat", "production", "1", "not empty any more")
    assert opened("two").aliases("chat") == {}


def test_an_alias_whose_files_are_not_here_is_no_404(opened: Open) -> None:
    one, two = opened("one"), opened("two")
    publish(one, "1")
    one.promote("demo", "production", "1", "")
    within(lambda: bool(two.aliases("demo")))
    with pytest.raises(Unreachable, match="whose files this instance does not have"):
        two.resolve("demo")


def test_a_restored_database_is_read_anew(pair: tuple[Repository, Repository], url: str) -> None:
    one, two = pair
    one.promote("demo", "production", "1", "")
    one.promote("demo", "production", "2", "")
    within(lambda: two.resolve("demo").version == "2")
    database = url.partition("?")[0].rpartition("/")[2]
    earlier = "DELETE FROM records WHERE revision > 1; UPDATE record_state SET revision = 1"
    postgres.server().sql(earlier, database)
    within(lambda: two.resolve("demo").version == one.resolve("demo").version == "1")


def test_the_time_of_a_slow_answer_is_no_error_of_the_clock() -> None:
    assert clock_error(105.0, sent=100.0, received=110.0) == 0
    assert clock_error(97.0, sent=100.0, received=110.0) == 3
    assert clock_error(112.5, sent=100.0, received=110.0) == -2.5


def test_a_command_that_leaves_has_no_connection(url: str, tmp_path: Path) -> None:
    """As `dosirak serve` does before it waits for its server."""
    database = url.partition("@/")[2].partition("?")[0]
    counted = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
    settings = Settings(data_dir=tmp_path, database_url=SecretStr(url))
    repository = open_repository(settings)
    publish(repository, "one")
    assert open_repository(settings).records is repository.records
    assert int(postgres.server().sql(counted)) > 0
    leave()
    within(lambda: postgres.server().sql(counted) == "0")
    with pytest.raises(Unreachable):
        repository.promote("demo", "production", "1", "late")
    open_repository(settings).promote("demo", "production", "1", "again")
    leave()


def test_a_change_needs_the_lock(pair: tuple[Repository, Repository]) -> None:
    with pytest.raises(RuntimeError, match="lock"):
        pair[0].records.put_document("deployments", "demo/1", b"{}")


def test_a_lock_is_held_between_instances(pair: tuple[Repository, Repository], tmp_path: Path) -> None:
    one, two = pair
    impatient = Repository(tmp_path / "two", lock_timeout=0.2, records=two.records)
    with one.locked("demo"), pytest.raises(Conflict, match="being changed"):
        impatient.promote("demo", "production", "1", "")
    assert impatient.promote("demo", "production", "1", "")
    with pytest.raises(RepositoryError):
        impatient.promote("demo", "production", "9", "")
    assert impatient.promote("demo", "production", "2", "")
