"""OpenAI's embeddings over the API: forms of input, vectors in order, dimensions, base64, exact usage, refusals."""

from __future__ import annotations

import asyncio
import base64
import math
import threading
import zlib
from array import array
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import structs

from service.api.ollama.embeddings import EmbedSerialiser
from service.api.openai.embeddings import EmbeddingSerialiser
from service.engine.protocol.messages import Pooling
from tests.api.conftest import KEY, Serve
from tests.api.reading import openai_error
from tests.fake_service import HIDDEN, INFO, WINDOW, World, over_http, pooled
from tests.waiting import until

TEXTS = ["도시락 하나", "a lunch box", "세트 메뉴"]


async def embed(world: World, given: Any, **body: Any) -> dict[str, Any]:
    response = await world.client.post("/v1/embeddings", json={"input": given, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def refused(world: World, given: Any, **body: Any) -> httpx.Response:
    return await world.client.post("/v1/embeddings", json={"input": given, **body})


def vectors(answer: dict[str, Any]) -> list[Any]:
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [each["embedding"] for each in answer["data"]]


def unit(numbers: list[float]) -> list[float]:
    return [each / math.hypot(*numbers) for each in numbers]


async def test_a_text(world: World) -> None:
    answer = await embed(world, TEXTS[0])
    [request], [vector] = world.engine.requests, vectors(answer)
    assert list(request.token_ids) == world.tokenizer.encode(TEXTS[0])
    assert (request.params.max_tokens, request.params.pooling) == (0, Pooling.LAST)
    assert vector == pytest.approx(unit(list(array("f", pooled(request)))))
    assert answer["usage"] == dict.fromkeys(("prompt_tokens", "total_tokens"), len(request.token_ids))
    assert (answer["object"], answer["model"], answer["pooling"], answer["normalized"]) == (
        "list",
        "demo:1",
        "last",
        True,
    )


async def test_four_forms_of_input(world: World) -> None:
    ids = [world.tokenizer.encode(text) for text in TEXTS]
    texts = await embed(world, TEXTS)
    assert vectors(await embed(world, ids)) == vectors(texts)
    assert [vectors(await embed(world, each))[0] for each in ids] == vectors(texts)
    assert texts["usage"]["prompt_tokens"] == sum(map(len, ids))


async def test_base64_holds_the_same_numbers(world: World) -> None:
    plain, packed = await embed(world, TEXTS), await embed(world, TEXTS, encoding_format="base64")
    assert [array("f", base64.b64decode(each)).tolist() for each in vectors(packed)] == vectors(plain)


async def test_dimensions_are_the_first_and_have_length_one_again(world: World) -> None:
    [whole] = vectors(await embed(world, TEXTS[0]))
    [short] = vectors(await embed(world, TEXTS[0], dimensions=3))
    assert short == pytest.approx(unit(whole[:3]))
    [plain] = vectors(await embed(world, TEXTS[0], dimensions=3, normalize=False))
    assert plain == list(array("f", pooled(world.engine.requests[0])))[:3]
    body = openai_error(await refused(world, TEXTS[0], dimensions=HIDDEN + 1), 400, "invalid_request")
    assert body["param"] == "dimensions"
    assert str(HIDDEN) in body["message"]


async def test_a_request_chooses_its_pooling(world: World) -> None:
    answers = [await embed(world, TEXTS[0], pooling=kind) for kind in Pooling]
    assert [each.params.pooling for each in world.engine.requests] == list(Pooling)
    assert [each["pooling"] for each in answers] == list(Pooling)
    assert len({tuple(vectors(each)[0]) for each in answers}) == 3


async def test_what_does_not_fit_is_refused_with_the_numbers_of_its_input(world: World) -> None:
    response = await refused(world, ["short", "a" * (WINDOW + 9)])
    body = openai_error(response, 400, "context_length_exceeded")
    assert "Input 1: " in body["message"]
    assert str(WINDOW) in body["message"]
    assert not world.engine.requests, "nothing runs of a batch that is refused"
    [vector] = vectors(await embed(world, ["a" * (WINDOW + 9)], truncate_prompt_tokens=5))
    assert len(vector) == HIDDEN
    await embed(world, "b" + "a" * (WINDOW + 9), truncate_prompt_tokens=-1)
    last, first = world.engine.requests
    assert (len(last.token_ids), len(first.token_ids)) == (5, WINDOW)
    assert first.token_ids[:2] == tuple(world.tokenizer.encode("ba")[:2])


async def test_a_version_without_hidden_states_is_refused_by_name(serve: Serve) -> None:
    info = structs.replace(INFO, no_embeddings="it has an encoder")
    async with serve(engine={"info": info}) as world:
        body = openai_error(await refused(world, "a"), 400, "unsupported_field")
        assert body["param"] == "model"
        assert "it has an encoder" in body["message"]


async def test_many_inputs_take_few_places(serve: Serve) -> None:
    hold = asyncio.Event()
    async with serve(engine={"hold": hold}, max_in_progress=40) as world:
        asked = asyncio.create_task(embed(world, [f"text {number}" for number in range(100)]))
        await until(lambda: len(world.engine.held) == 32)
        other = asyncio.create_task(world.client.post("/generate", json={"inputs": "hi"}))
        await until(lambda: len(world.engine.held) == 33)
        hold.set()
        assert len(vectors(await asked)) == 100
        assert (await other).status_code == 200
        sent = [world.tokenizer.encode(f"text {number}") for number in range(100)]
        assert [list(each.token_ids) for each in world.engine.requests if each.params.pooling] == sent


async def test_all_vectors_are_of_one_version(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as world:
        chosen = []
        choose = world.deployments.choose_loaded

        async def noting(*given: Any) -> Any:
            chosen.append(given)
            return await choose(*given)

        monkeypatch.setattr(world.deployments, "choose_loaded", noting)
        await embed(world, TEXTS)
        assert len(chosen) == 1


async def test_the_same_key_gets_the_same_bytes(world: World) -> None:
    bodies = [
        await world.client.post("/v1/embeddings", json={"input": TEXTS}, headers={"Idempotency-Key": "embeddings"})
        for _ in range(2)
    ]
    assert [each.status_code for each in bodies] == [200, 200]
    assert bodies[0].content == bodies[1].content
    assert len(world.engine.requests) == len(TEXTS)


@pytest.mark.parametrize(("path", "key"), [("/v1/embeddings", False), ("/v1/embeddings", True), ("/api/embed", False)])
async def test_bodies_of_many_vectors_are_made_beside_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str, key: bool
) -> None:
    """Each vector by itself, since the encoder keeps all threads waiting; compressed there too. A few are made at
    once."""
    made, wholes, loop = list[tuple[str, bool]](), list[dict[str, Any]](), threading.get_ident()

    def note(where: Any, name: str, results: list[Any]) -> None:
        real = getattr(where, name)

        def noted(*given: Any, **options: Any) -> Any:
            made.append((name, threading.get_ident() == loop))
            results.append(real(*given, **options))
            return results[-1]

        monkeypatch.setattr(where, name, noted)

    note(EmbeddingSerialiser, "whole", wholes)
    note(EmbedSerialiser, "whole", wholes)
    note(zlib, "compress", [])
    for texts in (["a"], ["a"] * 40):
        made.clear()
        headers = {"Idempotency-Key": f"vectors-{len(texts)}"} if key else {}
        answer = await world.client.post(path, json={"model": "demo", "input": texts}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert made == [("whole", len(texts) == 1 and not key), *([("compress", False)] if key else [])]
        vectors = wholes[-1].get("embeddings") or [each["embedding"] for each in wholes[-1]["data"]]
        assert {type(each) for each in vectors} == {msgspec.Raw} and len(vectors) == len(texts)


async def test_openais_client(serve: Serve) -> None:
    openai = pytest.importorskip("openai")
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        packed = await client.embeddings.create(model="demo", input=TEXTS)  # asks for base64 by itself
        plain = await client.embeddings.create(model="demo", input=TEXTS, encoding_format="float", dimensions=3)
        assert [len(each.embedding) for each in packed.data] == [HIDDEN] * 3
        for whole, short in zip(packed.data, plain.data, strict=True):
            assert short.embedding == pytest.approx(unit(list(whole.embedding)[:3]), abs=1e-6)
        assert packed.usage.prompt_tokens == sum(len(world.tokenizer.encode(text)) for text in TEXTS)
        with pytest.raises(openai.BadRequestError, match="the window has 512"):
            await client.embeddings.create(model="demo", input="a" * 900)


async def test_an_empty_text_is_named_by_its_place(shared: World) -> None:
    response = await shared.client.post("/v1/embeddings", json={"model": "demo", "input": ["a", "b", ""]})
    assert openai_error(response, 400, "invalid_request")["message"] == "`input[2]` is an empty string: leave it out"
