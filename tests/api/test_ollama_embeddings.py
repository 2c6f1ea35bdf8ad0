"""Ollama's embeddings: inputs in order, truncation by default, durations, loading, refusals; its client unchanged."""

from __future__ import annotations

import math
from array import array
from typing import Any

import httpx
import pytest

from service.engine.protocol.messages import Pooling
from tests.api.conftest import KEY, Serve
from tests.fake_service import HIDDEN, WINDOW, World, over_http, pooled

TEXTS = ["도시락 하나", "a lunch box"]


async def ask(world: World, path: str = "/api/embed", **body: Any) -> httpx.Response:
    return await world.client.post(path, json={"model": "demo", **body})


async def embed(world: World, given: Any, **body: Any) -> dict[str, Any]:
    response = await ask(world, input=given, **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_vectors_in_order_with_length_one(world: World) -> None:
    answer = await embed(world, TEXTS)
    sent = [world.tokenizer.encode(text) for text in TEXTS]
    assert sorted(map(list, (each.token_ids for each in world.engine.requests))) == sorted(sent)
    for ids, vector in zip(sent, answer["embeddings"], strict=True):
        [request] = [each for each in world.engine.requests if list(each.token_ids) == ids]
        numbers = list(array("f", pooled(request)))
        assert vector == pytest.approx([each / math.hypot(*numbers) for each in numbers])
    assert answer["prompt_eval_count"] == sum(map(len, sent))
    assert answer["total_duration"] >= answer["load_duration"] >= 0
    assert (await embed(world, TEXTS[0]))["embeddings"] == answer["embeddings"][:1]


async def test_an_input_that_does_not_fit_loses_its_end(world: World) -> None:
    text = "b" + "a" * (WINDOW + 9)
    await embed(world, text)
    await embed(world, text, options={"num_ctx": 40})
    whole, small = world.engine.requests
    assert (len(whole.token_ids), len(small.token_ids)) == (WINDOW, 40)
    assert whole.token_ids[:40] == small.token_ids == tuple(world.tokenizer.encode(text)[:40])
    response = await ask(world, input=text, truncate=False)
    assert response.status_code == 400
    assert str(WINDOW) in response.json()["error"]


async def test_dimensions(world: World) -> None:
    [vector] = (await embed(world, TEXTS[0], dimensions=3))["embeddings"]
    assert len(vector) == 3
    assert math.hypot(*vector) == pytest.approx(1)
    assert (await ask(world, input="x", dimensions=HIDDEN + 1)).status_code == 400


async def test_the_older_route_keeps_the_length(world: World) -> None:
    response = await ask(world, "/api/embeddings", prompt=TEXTS[0])
    [request] = world.engine.requests
    assert response.json() == {"embedding": list(array("f", pooled(request)))}
    assert request.params.pooling is Pooling.LAST


@pytest.mark.parametrize(
    ("path", "body", "empty"),
    [
        ("/api/embed", {"input": ""}, {"model": "demo:1", "embeddings": []}),
        ("/api/embed", {"input": None}, {"model": "demo:1", "embeddings": []}),
        ("/api/embed", {"input": []}, {"model": "demo:1", "embeddings": []}),
        ("/api/embed", {}, {"model": "demo:1", "embeddings": []}),
        ("/api/embed", {"keep_alive": 0}, {"model": "demo:1", "embeddings": []}),
        ("/api/embeddings", {"prompt": ""}, {"embedding": []}),
    ],
)
async def test_without_a_text_the_model_is_loaded(world: World, path: str, body: Any, empty: Any) -> None:
    response = await ask(world, path, **body)
    assert (response.status_code, response.json()) == (200, empty)
    assert not world.engine.requests


async def test_ollamas_client(serve: Serve) -> None:
    ollama = pytest.importorskip("ollama")
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        client = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"})
        found = await client.embed("demo", TEXTS, dimensions=3, options={"num_ctx": 100}, keep_alive="5m")
        assert [len(each) for each in found.embeddings] == [3, 3]
        assert found.prompt_eval_count == sum(len(world.tokenizer.encode(text)) for text in TEXTS)
        assert len((await client.embeddings("demo", TEXTS[0])).embedding) == HIDDEN
