"""A version's own sampling defaults: what a request leaves open comes from its generation_config.json, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import structs

from models.repository.repository import Repository
from service.engine.protocol.messages import Limit
from tests.fake_service import INFO, World, publish, serving

OWN: Final = {"do_sample": True, "temperature": 0.2, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
FILES: Final[dict[str, dict[str, Any]]] = {
    "own": OWN,
    "greedy": {"do_sample": False, "temperature": 0.9, "top_p": 0.6, "repetition_penalty": 1.1},
    "cool": {"temperature": 0, "top_k": 50},
    "mute": {"suppress_tokens": [5, 6, 100_000]},
    "odd": {"temperature": "hot", "top_p": 7, "top_k": 2.5, "typical_p": True, "suppress_tokens": ["a"]},
    "typical": {"typical_p": 0.5, "temperature": 0.3},
}
MESSAGES: Final = [{"role": "user", "content": "hi"}]
CHAT, TEXT, RESPONSES, CLAUDE, OLLAMA, OLLAMA_CHAT, NATIVE = (
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
    ("/api/generate", {"prompt": "hi", "stream": False}),
    ("/api/chat", {"messages": MESSAGES, "stream": False}),
    ("/generate", {"inputs": "hi"}),
)
SAMPLED: Final = {"temperature": 0.2, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
NOTHING: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
PENALISED: Final = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.1}
CASES: Final[list[tuple[str, tuple[str, dict[str, Any]], dict[str, Any], dict[str, Any]]]] = [
    *(("own", route, {}, SAMPLED) for route in (CHAT, TEXT, RESPONSES, CLAUDE, OLLAMA, OLLAMA_CHAT)),
    *(("demo", route, {}, NOTHING) for route in (CHAT, TEXT, RESPONSES, CLAUDE)),
    *(("greedy", route, {}, PENALISED) for route in (CHAT, TEXT, RESPONSES, CLAUDE)),
    ("greedy", OLLAMA, {}, {**PENALISED, "top_k": 40, "top_p": 0.9}),
    ("greedy", CHAT, {"temperature": 0.7}, {**NOTHING, "temperature": 0.7, "repetition_penalty": 1.1}),
    ("greedy", CHAT, {"top_p": 0.5}, {**NOTHING, "top_p": 0.5, "repetition_penalty": 1.1}),
    ("greedy", CHAT, {"top_p": 1}, PENALISED),
    ("own", CHAT, {"temperature": 1}, {**SAMPLED, "temperature": 1.0}),
    ("own", CHAT, {"temperature": None}, SAMPLED),
    ("own", CHAT, {"top_p": 1, "top_k": -1, "repetition_penalty": 1}, {**NOTHING, "temperature": 0.2}),
    ("own", CHAT, {"temperature": 0}, PENALISED),
    ("own", OLLAMA, {"options": {"top_k": 3}}, {**SAMPLED, "top_k": 3}),
    ("own", OLLAMA, {"options": {"repeat_last_n": 0}}, {**SAMPLED, "repetition_penalty": 1.0}),
    ("cool", CHAT, {}, {**NOTHING, "temperature": 0.0}),
    ("cool", CHAT, {"temperature": 1}, {**NOTHING, "top_k": 50}),
    ("odd", CHAT, {}, NOTHING),
    ("own", NATIVE, {}, PENALISED),
    ("own", NATIVE, {"parameters": {"do_sample": True}}, SAMPLED),
    ("own", NATIVE, {"parameters": {"top_k": 7}}, {**SAMPLED, "top_k": 7}),
    ("own", NATIVE, {"parameters": {"temperature": 0}}, PENALISED),
    ("own", NATIVE, {"parameters": {"repetition_penalty": 1}}, {**PENALISED, "repetition_penalty": 1.0}),
    ("greedy", NATIVE, {"parameters": {"do_sample": True}}, {**NOTHING, "repetition_penalty": 1.1}),
    ("demo", NATIVE, {"parameters": {"do_sample": True}}, NOTHING),
]


def published(directory: Path) -> Path:
    repository = Repository(directory)
    publish(repository)
    for name, told in FILES.items():
        publish(repository, name, generation_config=told)
    return directory


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("versions"))


async def asked(world: World, name: str, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[str], Any]:
    """Returns what the engine got, the notes of the answer, and the answer."""
    answer = await world.client.post(path, json={**body, "model": name})
    assert answer.is_success, answer.text
    engine = next(each for each in world.engines if each.requests)
    params = engine.requests.pop().params
    told = answer.json()
    return {name: getattr(params, name) for name in NOTHING}, _receipt(told)["notes"], told


def _receipt(told: dict[str, Any]) -> dict[str, Any]:
    """Ollama's `context` is another thing."""
    return dict(told.get("context_receipt") or told["context"])


async def test_what_a_request_leaves_open_comes_from_the_version(versions: Path) -> None:
    wrong = []
    async with serving(versions) as world:
        for name, (path, body), given, wanted in CASES:
            found, _, _ = await asked(world, name, path, {**body, **given})
            if found != wanted:
                wrong.append(f"{name} {path} {given}: {found}, not {wanted}")
    assert not wrong, "\n".join(wrong)


async def test_the_answer_says_where_it_came_from(versions: Path) -> None:
    async with serving(versions) as world:
        for path, body in (CHAT, TEXT, RESPONSES, CLAUDE, OLLAMA, OLLAMA_CHAT):
            _, notes, _ = await asked(world, "own", path, body)
            [note] = notes
            assert note.startswith("sampling by the version's generation_config.json: temperature 0.2, top_p 0.9"), path
        _, notes, told = await asked(world, "own", *RESPONSES)
        assert (told["temperature"], told["top_p"]) == (0.2, 0.9)
        assert (await asked(world, "own", CHAT[0], {**CHAT[1], **SAMPLED}))[1] == []
        assert (await asked(world, "demo", *CHAT))[1] == []
        assert (await asked(world, "own", NATIVE[0], {"inputs": "hi", "choices": ["a", "b"]}))[1] == []
        session = (await world.client.post("/v1/sessions", json={"model": "own"})).json()["id"]
        await asked(world, "own", CHAT[0], {**CHAT[1], "session_id": session})
        stored = (await world.client.get(f"/v1/sessions/{session}/messages")).json()["data"][-1]
        assert stored["context"]["notes"] == notes


async def test_no_request_has_a_suppressed_token_unless_it_says_so(versions: Path) -> None:
    async with serving(versions) as world:
        for given, wanted in (({}, {5: -1e4, 6: -1e4}), ({"logit_bias": {"5": 2}}, {5: 2, 6: -1e4})):
            await world.client.post(CHAT[0], json={**CHAT[1], "model": "mute", **given})
            assert dict(world.engine.requests.pop().params.logit_bias) == wanted


async def test_none_takes_nothing_from_the_version(versions: Path) -> None:
    async with serving(versions, generation_config="none") as world:
        for name in ("own", "greedy"):
            assert (await asked(world, name, *CHAT))[:2] == (NOTHING, [])


async def test_what_the_engine_does_not_take_is_named_and_left_out(versions: Path) -> None:
    """No client has asked for it, so no request is refused for it."""
    limited = structs.replace(INFO, limits=(Limit("typical_p", 1.0, 1.0),))
    async with serving(versions, engine={"info": limited}) as world:
        found, [note], _ = await asked(world, "typical", *CHAT)
        assert found == {**NOTHING, "temperature": 0.3} and world.engine.info is limited
        assert "temperature 0.3, but not typical_p 0.5, which its engine does not take" in note
