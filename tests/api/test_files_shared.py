"""Two servers with data directories of their own and one database bring contents of files from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from models.repository.opening import open_repository
from models.repository.store.place import StorePlace
from models.repository.store.remotes import remote_of
from service.tasks import BackgroundTasks
from tests import postgres
from tests.api.batching import content, create, ended, get, hold_the_rest, hurry, jsonl, request, upload
from tests.fake_service import World, publish, serving
from tests.sessions import needs_postgresql
from tests.stores import fresh_store

pytestmark = needs_postgresql
Serve = Callable[..., AbstractAsyncContextManager[World]]
LINES = 6


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = fresh_store("directory", tmp_path)
    publish(open_repository(tmp_path / "publisher", StorePlace(url)))
    return url


@pytest.fixture
async def serve(tmp_path: Path, store_url: str) -> AsyncIterator[Callable[..., Any]]:
    database = postgres.server().new_database()
    async with AsyncExitStack() as stack:

        async def serve_(name: str, store: str | None = store_url, **settings: Any) -> World:
            options = {"database_url": database, "store_url": store, **settings}
            if store is None:
                publish(open_repository(tmp_path / name))
            return await stack.enter_async_context(serving(tmp_path / name, **options))

        yield serve_


async def working(world: World) -> BackgroundTasks:
    tasks = BackgroundTasks(first_delay=0.005)
    world.app.state.service.batch_worker.start(tasks)
    return tasks


def lines(count: int = LINES) -> bytes:
    return jsonl([request(f"{number}") for number in range(count)])


async def read(world: World, id: str) -> tuple[int, bytes]:
    response = await world.client.get(f"/v1/files/{id}/content")
    return response.status_code, response.content


def stored(store_url: str) -> list[str]:
    return [each.path for each in remote_of(store_url).list("files/")]


async def test_a_file_is_read_at_the_other_and_deleted_everywhere(serve: Any, store_url: str) -> None:
    one, two = await serve("one"), await serve("two")
    data = lines()
    id = await upload(one, data)
    assert stored(store_url) == [f"files/{id}.{(await row(one, id)).sha256}"]
    for _ in range(2):
        assert await read(two, id) == (200, data)
    here = two.settings.data_dir / "files" / id
    assert here.stat().st_mode & 0o777 == 0o600
    assert (await two.client.delete(f"/v1/files/{id}")).status_code == 200
    assert stored(store_url) == [] and not here.exists()
    assert (await read(one, id))[0] == (await read(two, id))[0] == 404


async def row(world: World, id: str) -> Any:
    return await world.app.state.service.files.get("anonymous", id)


async def test_the_other_works_on_a_batch_and_its_output_is_read_at_the_first(serve: Any, store_url: str) -> None:
    one, two = await serve("one"), await serve("two")
    batch = await create(one, lines())
    tasks = await working(two)
    done = await ended(one, batch)
    assert done["status"] == "completed"
    assert [each["custom_id"] for each in await content(one, done["output_file_id"])] == [f"{n}" for n in range(LINES)]
    assert len(stored(store_url)) == 2
    await tasks.stop()


async def test_what_another_has_begun_waits_for_it(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = await serve("one", engine={"step_seconds": 0.05}), await serve("two")
    batch = await create(one, lines(40))
    tasks = await working(one)
    await hold_the_rest(one)
    async with asyncio.timeout(60):
        while not (await get(one, batch))["request_counts"]["completed"]:
            await asyncio.sleep(0.02)
    await tasks.stop()
    begun = (await get(one, batch))["request_counts"]["completed"]
    assert 0 < begun < 40
    others = await working(two)
    await asyncio.sleep(0.3)  # some passes of its worker
    assert (await get(two, batch))["request_counts"]["completed"] == begun, "its answers are at the first"
    monkeypatch.setattr("service.generation.batches.worker.TAKE_OVER", timedelta(seconds=-60))
    done = await ended(two, batch)
    assert done["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert [each["custom_id"] for each in await content(one, done["output_file_id"])] == [f"{n}" for n in range(40)]
    await others.stop()


async def test_a_content_that_differs_is_never_given_out(serve: Any, store_url: str) -> None:
    one, two = await serve("one"), await serve("two")
    data = lines()
    id = await upload(one, data)
    (path,) = stored(store_url)
    remote = remote_of(store_url)
    remote.put(path, data[:-2] + b"?\n")
    status, told = await read(two, id)
    assert status == 503 and b"is not what was published" in told and b"upload it again" in told
    assert list((two.settings.data_dir / "files").iterdir()) == []
    remote.delete(path)
    status, told = await read(two, id)
    assert status == 503 and b"The store has no files/" in told
    remote.put(path, data)
    assert await read(two, id) == (200, data)


async def test_a_store_that_is_away_takes_no_upload_and_keeps_a_batch(
    serve: Any, store_url: str, tmp_path: Path
) -> None:
    one, two = await serve("one"), await serve("two")
    batch = await create(one, lines())
    identity = tmp_path / "store" / "dosirak.json"
    identity.rename(tmp_path / "aside")
    (tmp_path / "store" / "files").rename(tmp_path / "files-aside")
    (tmp_path / "store" / "files").touch()  # neither given nor taken
    sent = {"files": {"file": ("in.jsonl", lines())}, "data": {"purpose": "batch"}}
    refused = await one.client.post("/v1/files", **sent)
    assert refused.status_code == 503 and "store" in refused.text
    names = {each.name for each in (one.settings.data_dir / "files").iterdir()}
    assert names == {batch["input_file_id"]}, "nothing of the refused upload is left"
    tasks = await working(one)
    async with asyncio.timeout(20):
        while (await get(one, batch))["status"] != "finalizing":
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    assert (await get(one, batch))["status"] == "finalizing"
    (tmp_path / "store" / "files").unlink()
    (tmp_path / "files-aside").rename(tmp_path / "store" / "files")
    (tmp_path / "aside").rename(identity)
    done = await ended(one, batch)
    assert done["status"] == "completed"
    assert len(await content(two, done["output_file_id"])) == LINES
    await tasks.stop()


async def test_expired_files_leave_the_store(serve: Any, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = await serve("one"), await serve("two")
    kept, gone = await upload(one, lines()), await upload(one, lines(2))
    await read(two, gone)
    async with (await one.app.state.service.answers.conversations.store())._database.writing() as connection:
        await connection.execute(text("UPDATE files SET expires_at = 1 WHERE id = :id"), {"id": gone})
    for each in ("service.storage.files.contents", "service.storage.files.files"):
        monkeypatch.setattr(f"{each}.STRAY_SECONDS", -1.0)
    await two.app.state.service.files.sweep()
    assert [path.partition(".")[0] for path in stored(store_url)] == [f"files/{kept}"]
    assert not (two.settings.data_dir / "files" / gone).exists()


async def test_without_a_store_the_sentence_says_what_is_missing(serve: Any, store_url: str) -> None:
    alone, shared = await serve("alone", store=None), await serve("shared")
    local, stored_ = await upload(alone, lines()), await upload(shared, lines())
    status, told = await read(shared, local)
    assert status == 503 and b"on another instance alone" in told and b"DOSIRAK_STORE_URL on every instance" in told
    status, told = await read(alone, stored_)
    assert status == 503 and b"set its DOSIRAK_STORE_URL" in told
