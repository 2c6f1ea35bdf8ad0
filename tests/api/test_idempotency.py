"""`Idempotency-Key` over HTTP: one generation, one turn, the same bytes again, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors import Unavailable
from service.storage.sessions import LEASE_SECONDS, Claim, SessionStore, WantedAnswers
from service.storage.sessions.answers import StoredAnswers
from service.storage.sessions.change import Change
from service.storage.sessions.idempotency import KEPT_SECONDS, Idempotency
from service.storage.sessions.values import AnswerKind
from tests.api.conftest import KEY, Serve
from tests.api.reading import error, events, openai_error
from tests.fake_service import World, over_http
from tests.sessions import Clock
from tests.waiting import until

REPLAYED = "idempotent-replayed"
CHAT = [{"role": "user", "content": "hi"}]
SHORT = {"max_new_tokens": 16}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"inputs": "x", "parameters": {"n": 3, "details": True, "temperature": 1.0}}),
    ("/generate", {"text_input": "x", "stream": True}),
    ("/", {"messages": CHAT, "parameters": {"temperature": 1.0}}),
    ("/generate_stream", {"inputs": "x", "parameters": {"temperature": 1.0}}),
    ("/v1/chat/completions", {"messages": CHAT, "n": 2}),
    ("/v1/chat/completions", {"messages": CHAT, "stream": True, "n": 2, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": ["a", "b", "c"]}),
    ("/v1/completions", {"prompt": ["a", "b", "c"], "stream": True}),
]
TURNS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"parameters": SHORT}),
    ("/generate_stream", {"parameters": SHORT}),
    ("/v1/chat/completions", {"max_tokens": 16}),
    ("/v1/chat/completions", {"max_tokens": 16, "stream": True}),
    ("/v1/chat/completions", {"max_tokens": 1, "stream": True}),
]


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/sessions.db"


@pytest.fixture
async def world(serve: Serve, database: str) -> AsyncIterator[World]:
    async with serve(database_url=database) as served:
        yield served


def at_time(world: World, clock: Clock) -> None:
    """Let the world's store go by this clock; before it is opened."""
    world.app.state.service.answers.conversations._open = partial(
        SessionStore.open, world.settings.session_database, clock=clock
    )


async def post(world: World, path: str, body: dict[str, Any], key: str = "k1", **headers: str) -> httpx.Response:
    return await world.client.post(path, json=body, headers={"Idempotency-Key": key, **headers})


async def made(world: World) -> str:
    return str((await world.client.post("/v1/sessions", json={})).json()["id"])


async def said(world: World, session: str) -> list[str]:
    response = await world.client.get(f"/v1/sessions/{session}/messages", params={"limit": 100})
    return [message["content"] for message in response.json()["data"]]


def assert_repeated(first: httpx.Response, again: httpx.Response) -> None:
    assert first.status_code == again.status_code == 200, (first.text, again.text)
    assert again.content == first.content and first.content
    assert (REPLAYED in first.headers, again.headers[REPLAYED]) == (False, "true")
    for name in ("content-type", "x-request-id", "x-model-version", "x-context-truncated", "x-context-dropped-tokens"):
        assert again.headers[name] == first.headers[name], name
    assert again.headers.get("cache-control") == first.headers.get("cache-control")


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_the_same_bytes_again(world: World, path: str, body: dict[str, Any]) -> None:
    first = await post(world, path, body)
    assert first.text.endswith("data: [DONE]\n\n") == (path.startswith("/v1") and "stream" in body)
    generated = len(world.engine.requests)
    assert_repeated(first, await post(world, path, body))
    assert len(world.engine.requests) == generated
    other = await post(world, path, body, "k2")
    assert REPLAYED not in other.headers and len(world.engine.requests) == 2 * generated


@pytest.mark.parametrize(("path", "body"), TURNS)
async def test_one_turn(world: World, path: str, body: dict[str, Any]) -> None:
    session = await made(world)
    turn = {"session_id": session, "messages": CHAT, **body}
    first = await post(world, path, turn, **{"If-Match": '"1"'})
    assert_repeated(first, await post(world, path, turn, **{"If-Match": '"1"'}))
    stored = await said(world, session)
    assert stored[0] == "hi" and len(stored) == 2
    assert len(world.engine.requests) == 1
    regenerate = f"/v1/sessions/{session}/regenerate"
    for stream in (False, True):
        again = {"parameters": {**SHORT, "temperature": 1.0}, "stream": stream}
        first = await post(world, regenerate, again, f"again {stream}".replace(" ", "-"))
        assert_repeated(first, await post(world, regenerate, again, f"again-{stream}"))
    assert len(await said(world, session)) == 2 and len(world.engine.requests) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_of_many_at_once_one_generates(serve: Serve, database: str, stream: bool) -> None:
    async with serve(engine={"step_seconds": 0.005}, database_url=database) as world:
        session = await made(world)
        turn = {"session_id": session, "messages": CHAT, "parameters": SHORT, "stream": stream}
        responses = await asyncio.gather(*(post(world, "/generate", turn) for _ in range(10)))
        assert {response.status_code for response in responses} == {200}
        assert len({response.content for response in responses}) == 1
        assert sum(REPLAYED in response.headers for response in responses) == 9
        assert len(world.engine.requests) == 1
        assert len(await said(world, session)) == 2


async def test_another_request_with_the_key_is_refused(world: World) -> None:
    await post(world, "/generate", {"inputs": "x"})
    error(await post(world, "/generate", {"inputs": "y"}), 409, "conflict")
    error(await post(world, "/generate_stream", {"inputs": "x"}), 409, "conflict")
    error(await post(world, "/generate", {"inputs": "x"}, **{"If-Match": '"1"'}), 409, "conflict")
    openai_error(await post(world, "/v1/completions", {"prompt": "x"}), 409, "conflict")
    assert len(world.engine.requests) == 1


async def test_keys_are_their_owner_s(serve: Serve, database: str) -> None:
    async with serve(database_url=database) as world:
        first = await post(world, "/generate", {"inputs": "x"})
        assert first.status_code == 200
    async with serve(database_url=database, admin_key=KEY) as world:
        again = await post(world, "/generate", {"inputs": "y"}, authorization=f"Bearer {KEY}")
        assert again.status_code == 200 and REPLAYED not in again.headers


@pytest.mark.parametrize("key", ["", "two words", "é", "x" * 256])
async def test_what_is_no_key_is_refused_by_name(world: World, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    response = await world.client.post("/generate", json={"inputs": "x"}, headers=headers)  # type: ignore[arg-type]
    assert "Idempotency-Key" in error(response, 422, "invalid_request")["error"]
    response = await world.client.post("/v1/completions", json={"prompt": "x"}, headers=headers)  # type: ignore[arg-type]
    assert openai_error(response, 400, "invalid_request")["param"] == "Idempotency-Key"
    assert not world.engine.requests


async def test_two_keys_are_none(world: World) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    error(await world.client.post("/generate", json={"inputs": "x"}, headers=headers), 422, "invalid_request")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_never_fits_claims_no_key(serve: Serve, database: str, stream: bool) -> None:
    async with serve(database_url=database, max_in_progress=2) as world:
        body = {"messages": CHAT, "n": 4, "temperature": 1, "stream": stream}
        for _ in range(2):
            openai_error(await post(world, "/v1/chat/completions", body), 400, "invalid_request")
        assert (await post(world, "/v1/chat/completions", {**body, "n": 2})).status_code == 200


async def test_routes_that_generate_nothing_take_no_notice(world: World) -> None:
    """A client that sends one with every POST, even the same."""
    for path, body in (("/v1/sessions", {}), ("/v1/sessions", {"title": "b"}), ("/tokenize", {"inputs": "x"})):
        assert (await post(world, path, body)).is_success
    assert (await post(world, "/generate", {"inputs": "x"})).is_success


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fail_after", [0, 4])
async def test_what_failed_is_done_anew(serve: Serve, database: str, stream: bool, fail_after: int) -> None:
    planted = {"fail_after": fail_after, "failure": Unavailable("planted")}
    async with serve(engine=planted, database_url=database) as world:
        session = await made(world)
        turn = {"session_id": session, "messages": CHAT, "parameters": SHORT, "stream": stream}
        failed = await post(world, "/generate", turn)
        assert "planted" in failed.text
        assert failed.status_code == (200 if stream and fail_after else 503)
        world.engine.fail_after = None
        async with asyncio.timeout(LEASE_SECONDS / 2):  # it need not wait for the lease
            whole = await post(world, "/generate", turn)
        assert whole.status_code == 200 and "planted" not in whole.text and REPLAYED not in whole.headers
        assert_repeated(whole, await post(world, "/generate", turn))
        assert len(await said(world, session)) == 2


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_what_a_client_left_is_done_anew(serve: Serve, database: str, path: str) -> None:
    async with serve(engine={"step_seconds": 0.02}, database_url=database) as world, over_http(world) as url:
        session = await made(world)
        turn = {"session_id": session, "messages": CHAT, "parameters": SHORT}
        headers = {"Idempotency-Key": "k1"}
        async with httpx.AsyncClient(base_url=url) as client:
            leaver = asyncio.create_task(client.post(path, json=turn, headers=headers))
            await until(lambda: world.engine.stats.steps_total > 2)
            leaver.cancel()
            await asyncio.gather(leaver, return_exceptions=True)
        async with asyncio.timeout(LEASE_SECONDS / 2):  # it need not wait for the lease
            whole = await post(world, path, turn)
        assert whole.status_code == 200 and REPLAYED not in whole.headers
        assert len(world.engine.requests) == 2 and len(world.engine.aborted) == 1
        assert len(await said(world, session)) == 2


async def test_a_client_that_waits_for_another_may_leave(serve: Serve, database: str) -> None:
    async with serve(engine={"hold": asyncio.Event()}, database_url=database) as world, over_http(world) as url:
        first = asyncio.create_task(post(world, "/generate", {"inputs": "x"}))
        await until(lambda: world.engine.alive)
        brief = httpx.Timeout(60, read=0.3)
        async with httpx.AsyncClient(base_url=url) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/generate", json={"inputs": "x"}, headers={"Idempotency-Key": "k1"}, timeout=brief)
        assert not first.done()
        world.engine.hold.set()  # type: ignore[union-attr]
        assert_repeated(await first, await post(world, "/generate", {"inputs": "x"}))
        assert len(world.engine.requests) == 1


async def test_a_repetition_waits_no_longer_than_its_deadline(serve: Serve, database: str) -> None:
    async with serve(engine={"hold": asyncio.Event()}, database_url=database) as world:
        body = {"inputs": "x", "deadline_ms": 3000}
        first = asyncio.create_task(post(world, "/generate", body))
        await until(lambda: world.engine.alive)
        refused = error(await post(world, "/generate", body), 503, "unavailable")
        assert "still runs" in refused["error"]
        world.engine.hold.set()  # type: ignore[union-attr]
        await first


async def test_an_answer_is_kept_for_a_day(serve: Serve, database: str) -> None:
    clock = Clock()
    async with serve(database_url=database) as world:
        at_time(world, clock)
        first = await post(world, "/generate", {"inputs": "x"})
        clock.move(KEPT_SECONDS - 1)
        assert_repeated(first, await post(world, "/generate", {"inputs": "x"}))
        clock.move(2)
        assert REPLAYED not in (await post(world, "/generate", {"inputs": "another"})).headers


async def test_a_long_generation_keeps_its_claim(serve: Serve, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.answering.stored_responses.RENEW_SECONDS", 0.01)
    clock, renew, renewed = Clock(), Idempotency.renew, list[Claim]()

    async def counted(of: Idempotency, claim: Claim) -> None:
        await renew(of, claim)
        renewed.append(claim)

    monkeypatch.setattr(Idempotency, "renew", counted)
    async with serve(engine={"step_seconds": 0.03}, database_url=database) as world:
        at_time(world, clock)
        first = asyncio.create_task(post(world, "/generate", {"inputs": "x"}))
        await until(lambda: world.engine.alive)
        for _ in range(4):
            clock.move(LEASE_SECONDS * 0.6)
            enough = len(renewed) + 2  # one of the two began after the move
            await until(partial(lambda enough: len(renewed) >= enough, enough))
        assert_repeated(await first, await post(world, "/generate", {"inputs": "x"}))
        assert len(world.engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_whoever_lost_the_claim_stops(
    serve: Serve, database: str, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """He slept for longer than his lease: another has begun, and his own answer is worth nothing."""
    monkeypatch.setattr("service.api.answering.stored_responses.RENEW_SECONDS", 0.05)
    clock = Clock()
    async with serve(engine={"hold": asyncio.Event()}, database_url=database) as world:
        at_time(world, clock)
        session = await made(world)
        turn = {"session_id": session, "messages": CHAT, "parameters": SHORT, "stream": stream}
        slow = asyncio.create_task(post(world, "/generate", turn))
        await until(lambda: world.engine.alive)
        store = await world.app.state.service.answers.conversations.store()
        async with store._database.writing() as connection:
            await connection.exec_driver_sql("UPDATE idempotency SET claim = 'another''s'")
        error(await slow, 409, "conflict")
        assert not world.engine.alive and await said(world, session) == []
        clock.move(LEASE_SECONDS + 1)
        world.engine.hold.set()  # type: ignore[union-attr]
        assert (await post(world, "/generate", turn)).status_code == 200
        assert len(await said(world, session)) == 2


async def test_a_claim_that_is_lost_in_mid_stream_ends_it_with_a_word(
    serve: Serve, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.api.answering.stored_responses.RENEW_SECONDS", 0.02)
    async with serve(engine={"step_seconds": 0.05}, database_url=database) as world:
        slow = asyncio.create_task(post(world, "/generate_stream", {"inputs": "x"}))
        await until(lambda: world.engine.stats.steps_total > 2)
        store = await world.app.state.service.answers.conversations.store()
        async with store._database.writing() as connection:
            await connection.exec_driver_sql("UPDATE idempotency SET claim = 'another''s'")
        told = events(await slow)
        assert told[0]["index"] == 1 and told[-1]["code"] == "conflict" and len(told) < 10
        await until(lambda: world.engine.aborted)


class Killed(Exception):
    """Where the process dies."""


def dying(original: Callable[..., Any], after: bool) -> Callable[..., Any]:
    async def call(*arguments: Any, **options: Any) -> Any:
        if after:
            await original(*arguments, **options)
        raise Killed

    return call


STEPS = [
    (Change, "add", False),
    (Change, "add", True),
    ("service.storage.sessions.idempotency.finish", "", False),
    ("service.storage.sessions.idempotency.finish", "", True),
    (Change, "save", False),
    (Change, "save", True),
]


async def die(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    turn: dict[str, Any],
    where: Any,
    name: str,
    after: bool,
    path: str = "/generate",
) -> None:
    """Send the turn to a process that dies there, so that it abandons nothing."""

    async def nothing(*_: Any) -> None:
        pass

    with monkeypatch.context() as planted:
        planted.setattr(Idempotency, "abandon", nothing)
        if name:
            planted.setattr(where, name, dying(getattr(where, name), after))
        else:
            from service.storage.sessions import idempotency

            planted.setattr(where, dying(idempotency.finish, after))
        response = await post(world, path, turn)
        assert response.status_code == 500 or "internal" in response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("where", "name", "after"), STEPS)
async def test_a_death_before_the_commit_leaves_nothing(
    serve: Serve, database: str, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, after: bool, stream: bool
) -> None:
    clock = Clock()
    async with serve(database_url=database) as world:
        at_time(world, clock)
        session = await made(world)
        turn = {"session_id": session, "messages": CHAT, "parameters": SHORT, "stream": stream}
        await die(world, monkeypatch, turn, where, name, after)
        assert await said(world, session) == []
    async with serve(database_url=database) as world:
        at_time(world, clock)
        waiting = asyncio.create_task(post(world, "/generate", turn))
        await asyncio.sleep(0.05)
        assert not waiting.done() and not world.engine.requests, "the dead one's lease still runs"
        clock.move(LEASE_SECONDS + 1)
        assert REPLAYED not in (await waiting).headers
        assert len(await said(world, session)) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_death_after_the_commit_loses_nothing(
    serve: Serve, database: str, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async with serve(database_url=database) as world:
        session = await made(world)
        turn = {"session_id": session, "messages": CHAT, "parameters": SHORT, "stream": stream}
        await die(world, monkeypatch, turn, SessionStore, "append_turn", True)
        stored = await said(world, session)
        assert len(stored) == 2
    async with serve(database_url=database) as world:
        again = await post(world, "/generate", turn)
        assert again.headers[REPLAYED] == "true" and not world.engine.requests
        told = events(again)[-1] if stream else json.loads(again.content)
        assert told["generated_text"] == stored[1]
        assert await said(world, session) == stored


STORED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 16, "store": True}),
]
STORING = [
    (StoredAnswers, "insert", False),
    (StoredAnswers, "insert", True),
    ("service.storage.sessions.idempotency.finish", "", False),
    ("service.storage.sessions.idempotency.finish", "", True),
    (Idempotency, "finish", True),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("where", "name", "after"), STORING)
@pytest.mark.parametrize(("path", "body"), STORED)
async def test_an_answer_and_its_key_are_stored_together(
    serve: Serve,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    where: Any,
    name: str,
    after: bool,
    stream: bool,
) -> None:
    """Wherever the process dies: the repetition's id is the one that is stored, and there is no other."""
    clock, asked = Clock(), {**body, "stream": stream}
    async with serve(database_url=database) as world:
        at_time(world, clock)
        await die(world, monkeypatch, asked, where, name, after, path)
        clock.move(LEASE_SECONDS + 1)
        told = await post(world, path, asked)
        assert (REPLAYED in told.headers) == (where is Idempotency), "what is committed is not made again"
        id = re.findall(r'"id":"((?:resp|chatcmpl)[^"]*)"', told.text)[0]
        stored = (await world.client.get(f"{path}/{id}")).json()
        assert stored["id"] == id
        store = await world.app.state.service.answers.conversations.store()
        kind: AnswerKind = "response" if "responses" in path else "chat.completion"
        found, _ = await store.answers.all("anonymous", WantedAnswers(kind), 10)
        assert [each.id for each in found] == [id]


@pytest.mark.parametrize(("path", "body"), STORED)
async def test_a_deleted_answer_is_not_repeated(world: World, path: str, body: dict[str, Any]) -> None:
    first = await post(world, path, body)
    stored = f"{path}/{first.json()['id']}"
    assert_repeated(first, await post(world, path, body))
    assert (await world.client.delete(stored)).status_code == 200
    again = await post(world, path, body)
    assert REPLAYED not in again.headers and again.json()["id"] != first.json()["id"]
    assert (await world.client.get(stored)).status_code == 404


async def test_an_answer_that_is_too_large_to_keep_is_done_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.storage.sessions.idempotency.MOST_BYTES", 8)
    turn = {"session_id": await made(world), "messages": CHAT, "parameters": SHORT}
    assert (await post(world, "/generate", turn)).status_code == 200
    told = error(await post(world, "/generate", turn), 409, "conflict")["error"]
    assert "too large to be kept" in told and len(world.engine.requests) == 1
    assert len(await said(world, str(turn["session_id"]))) == 2


async def test_without_the_database_only_keys_are_refused(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with serve(database_url=f"sqlite+aiosqlite:///{tmp_path}/file/sessions.db") as world:
        error(await post(world, "/generate", {"inputs": "x"}), 503, "unavailable")
        assert (await world.client.post("/generate", json={"inputs": "x"})).is_success
        error(await post(world, "/generate_stream", {"inputs": "x"}), 503, "unavailable")
