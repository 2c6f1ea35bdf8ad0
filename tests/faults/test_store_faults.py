"""Each fault of a store by each operation: what needs no store goes on, what cannot be written is refused by name and
leaves nothing, and all is well again when the fault ends, without a restart."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import event
from structlog.testing import capture_logs

from models.repository.repository import Repository
from service.storage.sessions.store import PATIENCE_SECONDS, SessionStore
from tests import disks, postgres
from tests.fake_service import World, publish, serving
from tests.migrated import begin_with_copies
from tests.sessions import needs_postgresql

begin_with_copies()
KEY: Final = "correct horse battery staple"
PATIENCE: Final = 0.2
HI: Final = {"role": "user", "content": "hi"}
LINE: Final = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"demo","prompt":"x"}}\n'
MODEL: Final = "/v1/repository/models/demo"
STATUSES: Final = {"storage_full": 507, "unavailable": 503}
FORM: Final[dict[str, Any]] = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", LINE * 100)}}
NOTHING, READS, WRITES, DISK, RECORDS = "nothing", "reads", "writes", "disk", "records"


@dataclass(frozen=True)
class Operation:
    """`needs` what of the stores: nothing, rows of the database, writing there, writing a file, or a record, which is a
    file where no instances share it. `form` is multipart."""

    needs: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    headers: dict[str, str] | None = None
    form: dict[str, Any] = field(default_factory=dict)

    async def ask(self, client: httpx.AsyncClient, seeds: dict[str, str]) -> httpx.Response:
        body = None if self.body is None else {name: _filled(value, seeds) for name, value in self.body.items()}
        return await client.request(
            self.method, self.path.format(**seeds), json=body, headers=self.headers, **self.form
        )


def _filled(value: Any, seeds: dict[str, str]) -> Any:
    return value.format(**seeds) if isinstance(value, str) else value


OPERATIONS: Final = {
    "generate": Operation(NOTHING, "POST", "/generate", {"inputs": "hi"}),
    "generate streamed": Operation(NOTHING, "POST", "/generate_stream", {"inputs": "hi"}),
    "chat": Operation(NOTHING, "POST", "/v1/chat/completions", {"messages": [HI]}),
    "a response that is not stored": Operation(NOTHING, "POST", "/v1/responses", {"input": "hi", "store": False}),
    "list of models": Operation(NOTHING, "GET", "/v1/models"),
    "aliases": Operation(NOTHING, "GET", f"{MODEL}/aliases"),
    "keys": Operation(NOTHING, "GET", "/v1/keys"),
    "probe": Operation(NOTHING, "GET", "/readyz"),
    "metrics": Operation(NOTHING, "GET", "/metrics"),
    "history": Operation(READS, "GET", "/v1/sessions/{session}/messages"),
    "sessions": Operation(READS, "GET", "/v1/sessions?query=h"),
    "usage": Operation(READS, "GET", "/v1/usage"),
    "content of a file": Operation(READS, "GET", "/v1/files/{file}/content"),
    "turn": Operation(WRITES, "POST", "/generate", {"session_id": "{session}", "messages": [HI]}),
    "chat turn": Operation(WRITES, "POST", "/v1/chat/completions", {"session_id": "{session}", "messages": [HI]}),
    "turn streamed": Operation(WRITES, "POST", "/generate_stream", {"session_id": "{session}", "messages": [HI]}),
    "a response that is stored": Operation(WRITES, "POST", "/v1/responses", {"input": "hi"}),
    "Idempotency-Key": Operation(WRITES, "POST", "/generate", {"inputs": "hi"}, {"Idempotency-Key": "faults"}),
    "upload": Operation(WRITES, "POST", "/v1/files", form=FORM),
    "deleted file": Operation(WRITES, "DELETE", "/v1/files/{other_file}"),
    "deleted session": Operation(WRITES, "DELETE", "/v1/sessions/{other_session}"),
    "new session": Operation(WRITES, "POST", "/v1/sessions", {}),
    "title": Operation(WRITES, "PATCH", "/v1/sessions/{session}", {"title": "x" * 200}),
    "document": Operation(WRITES, "POST", "/v1/knowledge", {"text": "x y z " * 3000}),
    "vote": Operation(WRITES, "POST", "/v1/feedback", {"id": "{answer}", "rating": 1}),
    "batch": Operation(
        WRITES,
        "POST",
        "/v1/batches",
        {"input_file_id": "{file}", "endpoint": "/v1/completions", "completion_window": "24h"},
    ),
    "new key": Operation(WRITES, "POST", "/v1/keys", {"name": "shop" * 10, "scopes": ["generate"]}),
    "import": Operation(DISK, "POST", f"{MODEL}/versions", {"source": "/nonexistent", "evaluate": "none"}),
    "evaluation": Operation(DISK, "POST", f"{MODEL}/versions/1/evaluate", {}),
    "parsers": Operation(RECORDS, "PATCH", f"{MODEL}/versions/1", {"tool_parser": "hermes"}),
    "alias": Operation(RECORDS, "PUT", f"{MODEL}/aliases/{{alias}}", {"version": "1", "reason": "x" * 900}),
}


@dataclass
class Store:
    """What a fault is put into. `fired` counts what shows that it was there."""

    directory: Path
    sessions: SessionStore
    fired: int = 0

    @property
    def database(self) -> Path:
        return self.directory / "sessions.db"

    async def settle(self) -> None:
        """Brings all rows into the one file, and lets go of pages that connections keep."""
        await self.sessions._database.truncate_log()
        await self.sessions._database.engine.dispose()


@contextmanager
def full(store: Store) -> Iterator[None]:
    """No byte is free on the disk."""
    with disks.full(store.directory):
        store.fired += 1
        yield


@contextmanager
def no_writes(store: Store) -> Iterator[None]:
    """Every write to a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        try:
            (store.directory / "probe").write_bytes(b"x")
        except OSError:
            store.fired += 1
        yield
    finally:  # else every test behind a failed one fails too
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (store.directory / "probe").unlink()


@contextmanager
def read_only(store: Store) -> Iterator[None]:
    engine = store.sessions._database.engine.sync_engine

    def query_only(connection: Any, *_: object) -> None:
        connection.cursor().execute(f"PRAGMA query_only={is_on}")
        store.fired += is_on

    is_on = True
    event.listen(engine, "checkout", query_only)
    yield
    is_on = False


@contextmanager
def locked(store: Store) -> Iterator[None]:
    holder = sqlite3.connect(store.database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    store.fired += 1
    yield
    holder.execute("ROLLBACK")
    holder.close()


@contextmanager
def rewritten(store: Store, damage: Callable[[bytes], bytes]) -> Iterator[None]:
    """The file's bytes are others, in place."""
    content = store.database.read_bytes()
    store.database.write_bytes(damage(content))
    store.fired += 1
    yield
    store.database.write_bytes(content)


@contextmanager
def moved(store: Store) -> Iterator[None]:
    away = store.database.with_name("away")
    store.database.rename(away)
    store.fired += 1
    yield
    assert not store.database.exists(), "no empty one was made in its place"
    away.rename(store.database)


PAGE: Final = 4096
NO_DATABASE: Final = {READS: 503, WRITES: 503}
FAULTS: Final[dict[str, tuple[Callable[[Store], AbstractContextManager[None]], dict[str, int]]]] = {
    "full disk": (full, {WRITES: 507, DISK: 507, RECORDS: 507}),
    "no write succeeds": (no_writes, {WRITES: 503, DISK: 503, RECORDS: 503}),
    "read-only database": (read_only, {WRITES: 503}),
    "locked database": (locked, {WRITES: 503}),
    "damaged pages": (
        partial(rewritten, damage=lambda content: content[:PAGE] + b"\xff" * (len(content) - PAGE)),
        NO_DATABASE,
    ),
    "cut database": (partial(rewritten, damage=lambda content: content[: 3 * PAGE]), NO_DATABASE),
    "emptied database": (partial(rewritten, damage=lambda content: b""), NO_DATABASE),
    "no database": (partial(rewritten, damage=lambda content: b"\xff" * len(content)), NO_DATABASE),
    "database moved away": (moved, NO_DATABASE),
}


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    is_small = request.node.callspec.params["fault"] == "full disk"
    directory = request.getfixturevalue("small_disk") if is_small else tmp_path
    monkeypatch.setattr(SessionStore, "open", partial(SessionStore.open, patience=PATIENCE))
    publish(Repository(directory))
    async with serving(directory, worker="tests.fake_job", admin_key=KEY) as served:
        served.client.headers["Authorization"] = f"Bearer {KEY}"
        yield served


async def _seeds(world: World) -> dict[str, str]:
    client = world.client
    session, other = [(await client.post("/v1/sessions", json={"title": "h"})).json()["id"] for _ in range(2)]
    turn = await client.post("/generate", json={"session_id": session, "messages": [HI]})
    files = [(await client.post("/v1/files", **FORM)).json()["id"] for _ in range(2)]
    return {
        "session": session,
        "other_session": other,
        "answer": turn.json()["id"],
        "file": files[0],
        "other_file": files[1],
    }


async def _kept(world: World, store: Store, seeds: dict[str, str]) -> dict[str, dict[str, object]]:
    """All that is stored, by what writes it, as a client sees it and as it lies in the directory."""
    paths = {
        WRITES: (f"/v1/sessions/{seeds['session']}/messages", "/v1/sessions", "/v1/knowledge", "/v1/batches"),
        DISK: ("/v1/keys", "/v1/jobs", f"{MODEL}/aliases", f"{MODEL}/versions/1"),
    }
    shown = {
        needs: {each: (await world.client.get(each)).json() for each in several} for needs, several in paths.items()
    }
    files = [str(each.relative_to(store.directory)) for each in store.directory.rglob("*") if each.is_file()]
    for each in files:
        if not each.startswith(("sessions.db", "locks/")):
            shown[WRITES if each.startswith("files/") else DISK][each] = None
    return shown


def _refused(answer: httpx.Response, name: str) -> tuple[int, str, bool]:
    """The status, the code and whether a retry is said to help; of a stream, as its last event tells them."""
    code = next((each for each in STATUSES if f'"{each}"' in answer.text), "")
    is_streamed = name.endswith("streamed") and answer.status_code == 200
    return (STATUSES.get(code, 200) if is_streamed else answer.status_code), code, "retry-after" in answer.headers


async def test_a_database_that_is_damaged_at_the_start(tmp_path: Path) -> None:
    """It is refused at once: to wait for it mends nothing."""
    publish(Repository(tmp_path))
    database = tmp_path / "sessions.db"
    database.write_bytes(b"\xff" * PAGE)
    async with serving(tmp_path) as world:
        ask = [world.client.get("/v1/sessions") for _ in range(5)]
        async with asyncio.timeout(PATIENCE_SECONDS - 1):
            answers = await asyncio.gather(*ask)
        assert {(each.status_code, bool(each.headers["retry-after"])) for each in answers} == {(503, True)}
        assert database.read_bytes() == b"\xff" * PAGE, "nobody made it anew"
        assert (await world.client.post("/generate", json={"inputs": "hi"})).status_code == 200
        assert "damaged" in (await world.client.get("/readyz")).json()["failing"][0]
        database.unlink()
        async with asyncio.timeout(10):
            while (await world.client.get("/v1/sessions")).status_code != 200:
                await asyncio.sleep(0.1)


async def _wrong(world: World, seeds: dict[str, str], refusals: dict[str, int]) -> list[str]:
    """Asks every operation twice. Returns the answers that are not as they must be. What is refused the second time is
    refused before an engine has worked for it."""
    wrong = list[str]()
    for n, (name, operation) in enumerate([*OPERATIONS.items(), *reversed(OPERATIONS.items())]):
        generated = len(world.engine.requests)
        answer = await operation.ask(world.client, {**seeds, "alias": "canary"})
        wanted = refusals.get(operation.needs)
        status, code, is_passing = _refused(answer, name)
        is_right = answer.is_success if wanted is None else (status, STATUSES.get(code)) == (wanted, wanted)
        is_told = wanted != 503 or is_passing or name.endswith("streamed")
        is_in_vain = wanted and n >= len(OPERATIONS) and len(world.engine.requests) > generated
        if not (is_right and is_told) or is_in_vain:
            wrong.append(f"{name}: {answer.status_code} {answer.headers.get('retry-after')} {answer.text[:300]}")
    probe, metrics = [(await world.client.get(each)) for each in ("/readyz", "/metrics")]
    assert probe.status_code == 200 and probe.json()["failing"]
    assert 'dosirak_store_failing{store="session_database"} 1.0' in metrics.text
    return wrong


async def _is_well(world: World, seeds: dict[str, str]) -> None:
    for name, operation in OPERATIONS.items():
        answer = await operation.ask(world.client, {**seeds, "alias": "staging"})
        assert answer.is_success and _refused(answer, name)[0] < 300, f"{name}: {answer.text[:300]}"


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_operation(world: World, fault: str) -> None:
    put, refusals = FAULTS[fault]
    seeds = await _seeds(world)
    conversations = world.app.state.service.answers.conversations
    store = Store(world.settings.data_dir, await conversations.store())
    before = await _kept(world, store, seeds)
    if refusals is NO_DATABASE:
        await store.settle()
    with capture_logs() as logged, put(store):
        assert await _wrong(world, seeds, refusals) == []
        assert store.fired
    told = [(each["event"], each["part"], each["reason"]) for each in logged if each["event"].endswith("_failed")]
    assert told and len(told) == len(set(told)) <= 4
    after = await _kept(world, store, seeds)
    for needs in refusals.keys() & before.keys():
        names = after[needs].keys() | before[needs].keys()
        assert {name for name in names if after[needs].get(name, 0) != before[needs].get(name, 0)} == set()
    await _is_well(world, seeds)


@needs_postgresql
async def test_postgresql_away_and_back(tmp_path: Path) -> None:
    """Records are rows there, and a job's file is not."""
    server = postgres.Server()
    publish(Repository(tmp_path))
    try:
        url = server.new_database()
        async with serving(tmp_path, worker="tests.fake_job", admin_key=KEY, database_url=url) as world:
            world.client.headers["Authorization"] = f"Bearer {KEY}"
            seeds = await _seeds(world)
            store = Store(tmp_path, await world.app.state.service.answers.conversations.store())
            before = await _kept(world, store, seeds)
            with capture_logs() as logged:
                await asyncio.to_thread(server.stop)
                assert await _wrong(world, seeds, {READS: 503, WRITES: 503, RECORDS: 503}) == []
            told = [each["event"] for each in logged if each["event"].endswith(("_failed", "_unreachable"))]
            assert {"session_database_failed", "records_unreachable"} <= set(told) and len(told) <= 4
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(30):
                while not (await OPERATIONS["new key"].ask(world.client, seeds)).is_success:
                    await asyncio.sleep(0.1)
            assert (await _kept(world, store, seeds))[WRITES] == before[WRITES]
            await _is_well(world, seeds)
    finally:
        server.remove()
