"""Owners share no prefix blocks: every dialect says who asks, and forks of one owner share all they can."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Scope

from service.api.edge.auth import Auth
from service.api.http.scopes import EVERY, Caller
from service.engine.protocol.messages import Request
from tests.api.conftest import Serve
from tests.fake_service import World
from tests.fakes import make_core, run_all

CHAT = [{"role": "user", "content": "The same long question, word for word, from two who know nothing of each other."}]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"messages": CHAT}),
    ("/generate", {"inputs": CHAT[0]["content"], "parameters": {"n": 2, "temperature": 1.0}}),
    ("/generate", {"messages": CHAT, "stream": True}),
    ("/generate_stream", {"messages": CHAT}),
    ("/", {"inputs": CHAT[0]["content"]}),
    ("/v1/chat/completions", {"messages": CHAT}),
    ("/v1/chat/completions", {"messages": CHAT, "stream": True}),
    ("/v1/completions", {"prompt": ["one", "two"]}),
    ("/v1/completions", {"prompt": "one", "stream": True}),
]


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header X-Owner says who asks."""

    def caller(self: Auth, scope: Scope) -> Caller:
        owner = str(dict(scope["headers"]).get(b"x-owner", b"key:nobody"), "ascii")
        return Caller(owner, owner, EVERY)

    monkeypatch.setattr(Auth, "caller", caller)


async def asked(world: World, path: str, owner: str, body: dict[str, Any]) -> list[Request]:
    before = len(world.engine.requests) if world.engines else 0
    response = await world.client.post(path, json=body, headers={"X-Owner": owner})
    assert response.status_code == 200, response.text
    return world.engine.requests[before:]


@pytest.mark.usefixtures("owners")
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_every_dialect_says_who_asks(shared: World, path: str, body: dict[str, Any]) -> None:
    for owner in ("key:a", "key:b", "anonymous"):
        requests = await asked(shared, path, owner, body)
        assert requests and {each.cache_salt for each in requests} == {owner}


@pytest.mark.usefixtures("owners")
async def test_a_salt_of_the_client_s_own_parts_prefixes_too(shared: World) -> None:
    """Two owners with the same salt share nothing either."""
    bodies = ({"prompt": "one"}, {"prompt": "one", "cache_salt": "a"}, {"prompt": "one", "cache_salt": "b"})
    salts = [
        request.cache_salt
        for owner in ("key:a", "key:b")
        for body in bodies
        for request in await asked(shared, "/v1/completions", owner, body)
    ]
    assert len(set(salts)) == 6


@pytest.mark.usefixtures("owners")
async def test_an_owner_finds_only_what_is_theirs(shared: World) -> None:
    """What the API asks, given to a real core: nothing of another's prompt is found, however equal."""
    core = make_core(num_blocks=256)
    cached = []
    for owner in ("key:a", "key:b", "key:a"):
        [request] = await asked(shared, "/generate", owner, {"messages": CHAT})
        core.add(request)
        cached.append(run_all(core)[request.id][-1].num_cached_tokens)
    assert cached == [0, 0, (len(request.token_ids) - 1) // 4 * 4]


async def test_a_fork_finds_what_the_session_has_left(serve: Serve, tmp_path: Path) -> None:
    async with serve(database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db") as world:
        session = (await world.client.post("/v1/sessions", json={"system": "You sell lunch."})).json()["id"]
        for text in ("one", "two"):
            await asked(world, "/generate", "", {"session_id": session, "messages": [{**CHAT[0], "content": text}]})
        stored = (await world.client.get(f"/v1/sessions/{session}/messages")).json()["data"]
        fork = (await world.client.post(f"/v1/sessions/{session}/fork", json={"at": stored[1]["id"]})).json()["id"]
        await asked(world, "/generate", "", {"session_id": fork, "messages": [{**CHAT[0], "content": "other"}]})
        first, second, forked = world.engine.requests
        regenerated = await asked(world, f"/v1/sessions/{fork}/regenerate", "", {})
    pairs = zip(second.token_ids, forked.token_ids, strict=False)
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert common > len(first.token_ids), "the first turn's answer as well"
    core = make_core(num_blocks=256)
    for request in (first, second, forked):
        core.add(request)
        found = run_all(core)[request.id][-1].num_cached_tokens
    assert found == common // 4 * 4
    assert [each.cache_salt for each in regenerated] == ["anonymous"]
