"""A batch keeps its answers wherever it is interrupted, on every endpoint and a full disk; an erased owner has none."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from service.context.sources import Text
from service.generation.request import GenerationRequest
from service.storage.sessions import WantedAnswers
from tests.api.batching import content, create, ended, get, hold_the_rest, hurry, jsonl, request, with_batches
from tests.api.conftest import Serve
from tests.fake_service import World
from tests.waiting import until

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "x", "max_tokens": 4},
    "/v1/embeddings": {"input": ["one", "two"]},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
}
LINES = 40


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return with_batches(tmp_path)


def file_of(endpoint: str, count: int = LINES) -> bytes:
    """One line more than `count` is refused by its route."""
    lines = [{"custom_id": f"{n}", "method": "POST", "url": endpoint, "body": BODIES[endpoint]} for n in range(count)]
    wrong = {**BODIES[endpoint], "model": "nobody"}
    return jsonl([*lines, {"custom_id": "wrong", "method": "POST", "url": endpoint, "body": wrong}])


async def completed(world: World, batch: dict[str, Any], count: int) -> None:
    async with asyncio.timeout(20):
        while (await get(world, batch))["request_counts"]["completed"] < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("endpoint", BODIES)
async def test_every_endpoint_s_lines_are_answered_once(serve: Serve, endpoint: str) -> None:
    """Stopped twice in the middle; what a line stores is stored once."""
    batch: dict[str, Any] = {}
    for count in (LINES // 3, 2 * LINES // 3, 0):
        async with serve(engine={"step_seconds": 0.01}) as world:
            batch = batch or await create(world, file_of(endpoint), endpoint)
            if count:
                await completed(world, batch, count)
                continue
            done = await ended(world, batch)
            output, errors = await content(world, done["output_file_id"]), await content(world, done["error_file_id"])
            stored, _ = await (await sessions(world)).answers.all("anonymous", WantedAnswers("response"), 100)
            alone = (await world.client.post(endpoint, json=BODIES[endpoint])).json()
    assert done["request_counts"] == {"total": LINES + 1, "completed": LINES, "failed": 1}
    assert [each["custom_id"] for each in output] == [f"{n}" for n in range(LINES)]
    assert [(each["custom_id"], each["response"]["status_code"]) for each in errors] == [("wrong", 404)]
    for each in output:
        body = each["response"]["body"]
        assert body.keys() == alone.keys() and body["object"] == alone["object"]
    if endpoint == "/v1/embeddings":
        assert output[0]["response"]["body"]["data"] == alone["data"]
    ids = [each["response"]["body"]["id"] for each in output] if endpoint == "/v1/responses" else []
    assert sorted(each.id for each in stored) == sorted(ids)


async def sessions(world: World) -> Any:
    return await world.app.state.service.answers.conversations.store()


@pytest.mark.parametrize("endpoint", BODIES)
async def test_a_line_takes_no_place_and_no_client_s_time(serve: Serve, endpoint: str) -> None:
    """Admission, the latencies of clients, and the limits of a rollout see no line."""
    async with serve(engine={"step_seconds": 0.05}) as world:
        batch = await create(world, file_of(endpoint, 3), endpoint)
        await until(lambda: bool(world.engines and world.engine.requests))
        assert world.app.state.service.answers.admission.in_progress == 0
        await ended(world, batch)
        text = (await world.client.get("/metrics")).text
        answered = sum(float(each.rsplit(" ", 1)[1]) for each in text.splitlines() if each.startswith(SUCCESS))
        assert answered == (6 if endpoint == "/v1/embeddings" else 3)
        counts = {name: _count(text, name) for name in TIMES}
        assert counts == dict.fromkeys(TIMES, 0.0)
        await world.client.post(endpoint, json=BODIES[endpoint])
        text = (await world.client.get("/metrics")).text
        assert _count(text, TIMES[0]) > 0


SUCCESS = "dosirak_request_success_total{"
TIMES = [
    "dosirak_e2e_request_latency_seconds",
    "dosirak_request_queue_time_seconds",
    "dosirak_request_prefill_time_seconds",
    "dosirak_request_decode_time_seconds",
    "dosirak_request_time_per_output_token_seconds",
    "dosirak_time_to_first_token_seconds",
    "dosirak_inter_token_latency_seconds",
    "gen_ai_server_request_duration_seconds",
]


def _count(text: str, name: str) -> float:
    return sum(float(each.rsplit(" ", 1)[1]) for each in text.splitlines() if each.startswith(f"{name}_count"))


async def test_a_line_is_no_observation_of_a_rollout_s_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    observed: list[float | None] = []
    rollouts = world.app.state.deployments.rollouts
    monkeypatch.setattr(rollouts, "observe", lambda rollout, version, failed, ttft: observed.append(ttft))
    await world.client.post("/generate", json={"inputs": "x"})
    answers = world.app.state.service.answers
    for priority in (0, -11):
        async for delta in answers.stream([GenerationRequest("r", Text("x"), priority=priority)]):
            last = delta
        answers._observe(_in_a_rollout(last.answer), last.answer.finish_reason)
    assert [each is None for each in observed] == [False, True]


def _in_a_rollout(answer: Any) -> Any:
    rollout = SimpleNamespace(shadow=False, base="0")
    names = ("first_at", "request", "manifest")
    return SimpleNamespace(rollout=rollout, **{name: getattr(answer, name) for name in names})


class FullDisk(io.FileIO):
    """Files of a disk that has `room` bytes left, for all of them together."""

    room: ClassVar[int]

    def write(self, data: Any) -> int:
        if FullDisk.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = super().write(bytes(data)[: FullDisk.room]) or 0
        FullDisk.room -= count
        return count


@pytest.mark.parametrize("room", [1000, 2500, 9000])
async def test_a_full_disk_stops_a_batch_and_it_goes_on_when_there_is_room(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Full in the middle of a record, wherever that is, and again at the output file."""
    FullDisk.room = room
    real = os.fdopen

    def on_the_disk(fd: int, mode: str = "r", *more: Any, **options: Any) -> Any:
        if mode == "a+b":
            return io.BufferedRandom(FullDisk(fd, "ab+"))
        return io.BufferedWriter(FullDisk(fd, "wb")) if mode == "wb" and is_full else real(fd, mode, *more, **options)

    is_full = False
    async with serve(engine={"step_seconds": 0.005}) as world:
        batch = await create(world, file_of("/v1/completions"), "/v1/completions")
        monkeypatch.setattr("service.generation.batches.journal.os.fdopen", on_the_disk)
        is_full = True
        await until(lambda: FullDisk.room <= 0)
        await asyncio.sleep(0.2)
        now = await get(world, batch)
        assert now["status"] in ("validating", "in_progress", "finalizing"), "it waits for room"
        assert (await world.client.post("/v1/completions", json=BODIES["/v1/completions"])).is_success
        FullDisk.room = 1 << 30
        done = await ended(world, batch)
        output = await content(world, done["output_file_id"])
    assert done["request_counts"] == {"total": LINES + 1, "completed": LINES, "failed": 1}
    assert [each["custom_id"] for each in output] == [f"{n}" for n in range(LINES)]


async def test_an_erased_owner_s_batch_leaves_nothing(serve: Serve, tmp_path: Path) -> None:
    """Neither a journal, nor a file, nor a stored response of a line that was in progress."""
    async with serve(engine={"step_seconds": 0.02}) as world:
        lines = [{**request(f"{n}", "/v1/responses"), "body": BODIES["/v1/responses"]} for n in range(300)]
        batch = await create(world, jsonl(lines), "/v1/responses")
        await completed(world, batch, 3)
        store = await sessions(world)
        await store.erase_owner("anonymous")
        await until(lambda: not list((tmp_path / "batches").iterdir()))
        await until(lambda: not world.engine.alive)
        assert await store.batches.present() == {}
        assert (await store.files.present())[0] == {}
        again = await create(world, jsonl([request("a")]))
        assert (await ended(world, again))["request_counts"]["completed"] == 1, "the worker goes on"


async def test_an_owner_erased_while_the_output_is_written_gets_no_file(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.generation.batches.run import BatchRun

    real, seen = BatchRun._file, list[Any]()

    async def then_erased(run: BatchRun, kind: str, lines: Any) -> Any:
        seen.append(await real(run, kind, lines))
        if kind == "output":
            await run._means.store.erase_owner("anonymous")
        return seen[-1]

    monkeypatch.setattr(BatchRun, "_file", then_erased)
    async with serve() as world:
        await create(world, jsonl([request("a")]))
        await until(lambda: len(seen) == 2)
        await until(lambda: not list((tmp_path / "batches").iterdir()))
        assert (await (await sessions(world)).files.present())[0] == {}
        assert not (tmp_path / "files" / seen[0].id).exists()


async def test_a_journal_that_a_dead_server_left_of_an_erased_owner_is_removed(serve: Serve, tmp_path: Path) -> None:
    left = tmp_path / "batches" / "batch_gone.journal"
    left.parent.mkdir()
    left.write_text("a record")
    async with serve(engine={"step_seconds": 0.02}) as world:
        await until(lambda: not left.exists())
        batch = await create(world, jsonl([request(f"{n}") for n in range(40)]))
        hold = await hold_the_rest(world)
        await completed(world, batch, 2)
        await world.app.state.service.batch_worker._sweep(await sessions(world))
        assert [each.name for each in left.parent.iterdir()] == [f"{batch['id']}.journal"], "an open one stays"
        hold.set()
        assert (await ended(world, batch))["request_counts"]["completed"] == 40
