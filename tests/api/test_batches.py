"""Batches as OpenAI's clients use them: every line answered once, with what HTTP would have answered."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.storage.sessions.store import utc_now
from tests.api.batching import URL, content, create, ended, get, hold_the_rest, hurry, jsonl, request, with_batches
from tests.api.conftest import KEY, Serve
from tests.fake_service import over_http
from tests.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return with_batches(tmp_path)


async def test_openai_s_client(serve: Serve) -> None:
    openai = pytest.importorskip("openai")
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        lines = [request(f"line-{n}", seed=n, temperature=1, model="demo") for n in range(40)]
        lines += [request("wrong", top_p=7), request("unknown", model="nobody"), request("stream", stream=True)]
        file = await client.files.create(file=jsonl(lines), purpose="batch")
        made = await client.batches.create(
            input_file_id=file.id, endpoint=URL, completion_window="24h", metadata={"for": "a test"}
        )
        assert (made.status, made.metadata) == ("validating", {"for": "a test"})
        while (batch := await client.batches.retrieve(made.id)).status not in ("completed", "failed"):
            await asyncio.sleep(0.02)
        assert batch.status == "completed", batch
        assert dict(batch.request_counts) == {"total": 43, "completed": 40, "failed": 3}
        assert made.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at < batch.expires_at
        output = [json.loads(each) for each in (await client.files.content(batch.output_file_id)).text.splitlines()]
        assert [each["custom_id"] for each in output] == [f"line-{n}" for n in range(40)]
        for each, line in zip(output, lines, strict=False):
            assert each.keys() == {"id", "custom_id", "response", "error"} and each["error"] is None
            assert each["response"]["status_code"] == 200 and each["response"]["request_id"]
            asked = await client.chat.completions.create(**line["body"])
            same = each["response"]["body"]["choices"][0]["message"]["content"]
            assert same == asked.choices[0].message.content
        failed = [json.loads(each) for each in (await client.files.content(batch.error_file_id)).text.splitlines()]
        told = {each["custom_id"]: each["response"] for each in failed}
        assert {name: each["status_code"] for name, each in told.items()} == {
            "wrong": 400,
            "unknown": 404,
            "stream": 400,
        }
        assert told["wrong"]["body"]["error"]["param"] == "top_p"
        assert told["stream"]["body"]["error"]["param"] == "stream"
        assert [each.id async for each in client.batches.list(limit=1)] == [made.id]
        output_file = await client.files.retrieve(batch.output_file_id)
        assert output_file.purpose == "batch_output" and output_file.filename == f"{made.id}_output.jsonl"
        with pytest.raises(openai.ConflictError, match="completed already"):
            await client.batches.cancel(made.id)
        assert world.engines[0].requests[0].priority == -11
        await until(lambda: not list((world.settings.data_dir / "batches").iterdir()))


async def test_lines_as_editors_write_them(serve: Serve) -> None:
    """A byte-order mark, CR LF, empty lines, no line end at the end, and body bytes that JSON allows."""
    first, second = json.dumps(request("a")), json.dumps(request("b", url="/v1/chat/completions"))
    data = b"\xef\xbb\xbf" + first.encode() + b"\r\n\r\n  \n" + second.encode()
    async with serve() as world:
        batch = await ended(world, await create(world, data))
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert batch["error_file_id"] is None
        assert [each["custom_id"] for each in await content(world, batch["output_file_id"])] == ["a", "b"]


HOSTILE: dict[str, tuple[bytes, str, int | None]] = {
    "deep": (b'{"custom_id": "a", "body": ' + b"[" * 2000, "invalid_json_line", 1),
    "empty": (b"\n", "empty_file", None),
    "no JSON": (b"{'a': 1}\n", "invalid_json_line", 1),
    "half": (jsonl([request("a")]) + b'{"custom_id": "b", "meth', "invalid_json_line", 2),
    "not UTF-8": (b'{"custom_id": "\xff"}', "invalid_json_line", 1),
    "a list": (b"[1]\n", "invalid_json_line", 1),
    "unknown key": (jsonl([{**request("a"), "colour": 1}]), "invalid_json_line", 1),
    "no id": (b'{"method": "POST", "url": "/v1/chat/completions", "body": {}}\n', "invalid_json_line", 1),
    "id twice": (jsonl([request("a"), request("b"), request("a")]), "duplicate_custom_id", 3),
    "empty id": (jsonl([request("")]), "invalid_custom_id", 1),
    "method": (jsonl([request("a", method="GET")]), "invalid_method", 1),
    "url": (jsonl([request("a", url="/v1/completions")]), "mismatched_url", 1),
    "body": (jsonl([{**request("a"), "body": 7}]), "invalid_body", 1),
    "huge": (jsonl([request("a"), request("b", user="x" * 5000)]), "line_too_large", 2),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_wrong_file_fails_by_name_and_line(serve: Serve, name: str) -> None:
    data, code, line = HOSTILE[name]
    async with serve(max_body_bytes=4096) as world:
        batch = await ended(world, await create(world, data))
        assert batch["status"] == "failed" and batch["output_file_id"] is None
        assert [(each["code"], each["line"]) for each in batch["errors"]["data"]] == [(code, line)]
        assert world.engines == [] or world.engine.requests == []


async def test_too_many_lines(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as world:
        line = json.dumps(request("%d")).replace("{", "{{").replace("}", "}}").replace("%d", "{}") + "\n"
        data = "".join(line.format(n, n) for n in range(50_001)).encode()
        batch = await ended(world, await create(world, data))
        assert batch["status"] == "failed"
        assert (
            batch["errors"]["data"][0]["code"] == "too_many_tasks" and "50000" in batch["errors"]["data"][0]["message"]
        )


async def test_of_many_wrong_lines_a_hundred_are_named(serve: Serve) -> None:
    async with serve() as world:
        batch = await ended(world, await create(world, b"{}\n" * 500))
        assert len(batch["errors"]["data"]) == 100


async def test_half_of_a_surrogate_pair_fails_its_line_alone(serve: Serve) -> None:
    """A text that was cut inside an emoji; the route refuses it, and the other lines are answered."""
    broken = request("cut", messages=[{"role": "user", "content": "cut \ud83d"}])
    async with serve() as world:
        batch = await ended(world, await create(world, jsonl([request("a"), broken, request("b")])))
        assert batch["status"] == "completed" and batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        [refused] = await content(world, batch["error_file_id"])
        assert (
            refused["custom_id"] == "cut"
            and "half of a surrogate pair" in refused["response"]["body"]["error"]["message"]
        )


async def test_a_defect_does_not_hold_the_others_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    from service.generation.batches import lines, run

    real = lines.check

    def broken(path: Path, endpoint: str, most: int) -> Any:
        if b"planted" in path.read_bytes():
            raise RuntimeError("planted")
        return real(path, endpoint, most)

    monkeypatch.setattr(run, "check", broken)
    async with serve() as world:
        first = await create(world, jsonl([request("planted")]))
        second = await create(world, jsonl([request("b")]))
        assert (await ended(world, second))["status"] == "completed"
        failed = await get(world, first)
        assert failed["status"] == "failed" and failed["errors"]["data"][0]["code"] == "server_error"


async def test_a_line_is_tried_again_where_its_caller_cannot_be_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.errors import Unavailable
    from service.generation.batches.run import LineRequest

    def away(owner: str, keys: Any) -> Any:
        raise Unavailable("The keys cannot be read", retry_after=3)

    monkeypatch.setattr("service.api.openai.files.batch_lines.caller_behind", away)
    async with serve() as world:
        ask = world.app.state.service.batch_worker._answer
        reply = await ask(LineRequest("anonymous", URL, json.dumps(request("a")["body"]).encode(), "batch_1:1"))
        assert (reply.status, reply.retry_after) == (503, 3)


async def test_cancel_keeps_what_is_answered(serve: Serve) -> None:
    async with serve(engine={"step_seconds": 0.02}) as world:
        lines = [request(f"{n}", max_tokens=3) for n in range(300)]
        batch = await create(world, jsonl(lines))
        await hold_the_rest(world)
        while not (await get(world, batch))["request_counts"]["completed"] > 0:
            await asyncio.sleep(0.01)
        cancelling = (await world.client.post(f"/v1/batches/{batch['id']}/cancel")).json()
        assert cancelling["status"] == "cancelling"
        deleted = await world.client.delete(f"/v1/files/{batch['input_file_id']}")
        assert deleted.status_code == 409
        done = await ended(world, batch)
        assert done["status"] == "cancelled" and done["cancelled_at"] >= done["cancelling_at"]
        output, errors = await content(world, done["output_file_id"]), await content(world, done["error_file_id"])
        assert 0 < len(output) == done["request_counts"]["completed"] < 300
        assert sorted((each["custom_id"] for each in [*output, *errors]), key=int) == [f"{n}" for n in range(300)]
        assert {each["error"]["code"] for each in errors} == {"batch_cancelled"}
        assert world.engine.alive == set()
        assert (await world.client.delete(f"/v1/files/{batch['input_file_id']}")).status_code == 200


async def test_what_is_late_has_expired(serve: Serve) -> None:
    async with serve(engine={"step_seconds": 0.02}) as world:
        store = await world.app.state.service.answers.conversations.store()
        batch = await create(world, jsonl([request(f"{n}") for n in range(200)]))
        await hold_the_rest(world)
        while not (await get(world, batch))["request_counts"]["completed"] > 0:
            await asyncio.sleep(0.01)
        store._clock = lambda: utc_now() + timedelta(hours=25)
        done = await ended(world, batch, "expired")
        output, errors = await content(world, done["output_file_id"]), await content(world, done["error_file_id"])
        assert len(output) + len(errors) == 200 and {each["error"]["code"] for each in errors} == {"batch_expired"}
        assert done["expired_at"] > done["in_progress_at"]


async def test_a_stopped_server_goes_on_where_it_was(serve: Serve, tmp_path: Path) -> None:
    """Twice; each line is answered once in the output. The engines' requests say which were asked again."""
    lines = [request(f"{n}", seed=n, temperature=1) for n in range(120)]
    asked: list[str] = []
    batch: dict[str, Any] = {}
    for stopped in (True, True, False):
        async with serve(engine={"step_seconds": 0.01}) as world:
            batch = batch or await create(world, jsonl(lines))
            before = (await get(world, batch))["request_counts"]["completed"]
            if stopped:
                while (await get(world, batch))["request_counts"]["completed"] < before + 10:
                    await asyncio.sleep(0.01)
            else:
                batch = await ended(world, batch)
                output = await content(world, batch["output_file_id"])
        asked += [each.id for each in world.engine.requests]
    assert batch["request_counts"] == {"total": 120, "completed": 120, "failed": 0}
    assert [each["custom_id"] for each in output] == [f"{n}" for n in range(120)]
    assert len(asked) < 120 + 2 * 40, "what was answered is not asked again"


async def test_another_owner_s_batch_is_not_there(serve: Serve) -> None:
    async with serve() as world:
        from service.storage.sessions import BatchFacts

        store = await world.app.state.service.answers.conversations.store()
        file = await store.files.add("mallory", "file-m", purpose="batch", filename="a", size=1, seconds=None)
        other = await store.batches.create("mallory", file.id, BatchFacts(endpoint=URL, output_seconds=60))
        assert (await world.client.get("/v1/batches")).json()["data"] == []
        for method, path in (("GET", ""), ("POST", "/cancel")):
            foreign = await world.client.request(method, f"/v1/batches/{other.id}{path}")
            unknown = await world.client.request(method, f"/v1/batches/batch_none{path}")
            assert (foreign.status_code, unknown.status_code) == (404, 404)
            assert foreign.text.replace(other.id, "batch_none") == unknown.text
        body = {"input_file_id": file.id, "endpoint": URL, "completion_window": "24h"}
        assert (await world.client.post("/v1/batches", json=body)).status_code == 404


async def test_lines_take_no_place_of_clients(serve: Serve) -> None:
    """With one place in all, a batch in flight refuses nobody, and its latencies are not the clients'."""
    async with serve(max_in_progress=1, engine={"step_seconds": 0.01}) as world:
        batch = await create(world, jsonl([request(f"{n}") for n in range(30)]))
        answers = [await world.client.post("/generate", json={"inputs": "x"}) for _ in range(5)]
        assert {each.status_code for each in answers} == {200}
        await ended(world, batch)
        async with asyncio.timeout(20):  # the worker counts a batch after its end
            while 'dosirak_batches{status="completed"} 1.0' not in (text := (await world.client.get("/metrics")).text):
                await asyncio.sleep(0.01)
        assert 'dosirak_batch_lines_total{result="completed"} 30.0' in text
        assert 'dosirak_time_to_first_token_seconds_count{model="demo",version="1"} 5.0' in text


async def test_lines_of_a_session_are_stored_once(serve: Serve) -> None:
    """Also where the server dies between the answer and its journal: the line's own key answers the second time."""
    async with serve() as world:
        session = (await world.client.post("/v1/sessions", json={})).json()["id"]
        from service.generation.batches.run import LineRequest

        body = json.dumps({**request("a")["body"], "session_id": session}).encode()
        ask = world.app.state.service.batch_worker._answer
        first, second = [await ask(LineRequest("anonymous", URL, body, "batch_1:1")) for _ in range(2)]
        assert first.status == second.status == 200 and first.body == second.body
        messages = (await world.client.get(f"/v1/sessions/{session}/messages")).json()["data"]
        assert [each["role"] for each in messages] == ["user", "assistant"]


async def test_lines_that_store_are_answered_once(serve: Serve) -> None:
    async with serve() as world:
        from service.generation.batches.run import LineRequest

        body = json.dumps({**request("a")["body"], "store": True}).encode()
        ask = world.app.state.service.batch_worker._answer
        first, second = [await ask(LineRequest("anonymous", URL, body, "batch_2:1")) for _ in range(2)]
        assert first.status == 200 and first.body == second.body


@pytest.mark.parametrize("failure", ["unavailable", "defect"])
async def test_a_line_is_tried_again_where_that_can_help(serve: Serve, failure: str) -> None:
    from service.errors import Unavailable

    error: Exception = Unavailable("loading", retry_after=0.01) if failure == "unavailable" else RuntimeError("planted")
    async with serve(engine={"failure": error, "fail_after": 0}) as world:
        batch = await create(world, jsonl([request("a")]))
        if failure == "unavailable":
            while len(world.engines[0].requests) < 2:
                await asyncio.sleep(0.01)
            world.engine.fail_after = None
        done = await ended(world, batch)
        assert done["status"] == "completed"
        assert done["request_counts"]["failed"] == (failure == "defect")
        lines = await content(world, done["output_file_id"] or done["error_file_id"])
        assert lines[0]["response"]["status_code"] == (500 if failure == "defect" else 200)
