"""Tokens into text, and what a client must know of a tokenizer to write prompts as it does: under vLLM's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from models.repository.repository import Repository
from tests.api.conftest import Serve
from tests.api.reading import error
from tests.fake_service import REPLY, World, over_http, publish, serving
from tests.tokenizers import CHAT_TEMPLATE
from tests.tools import WITH_TOOLS

TEXTS = ["", "도시락 box", "😀👩‍👩‍👧‍👦 \n\n\t", "<s>a<|im_end|>", "<think>도구"]


async def detokenize(world: World, **body: Any) -> str:
    response = await world.client.post("/detokenize", json=body)
    assert response.status_code == 200, response.text
    text: str = response.json()["prompt"]
    return text


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("text", TEXTS)
async def test_tokens_become_the_text_that_gave_them(shared: World, text: str) -> None:
    ids = (await shared.client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert await detokenize(shared, tokens=ids) == text
    assert await detokenize(shared, tokens=ids, model="demo:1") == text


@pytest.mark.asyncio(loop_scope="module")
async def test_control_tokens_are_shown_unless_the_client_skips_them(shared: World) -> None:
    ids = shared.tokenizer.encode("<s>hi<|im_end|>")
    assert await detokenize(shared, tokens=ids) == "<s>hi<|im_end|>"
    assert await detokenize(shared, tokens=ids, skip_special_tokens=True) == "hi"


@pytest.mark.asyncio(loop_scope="module")
async def test_what_cannot_be_turned_into_text_is_refused_by_name(shared: World) -> None:
    size = shared.tokenizer.vocab_size
    last = await shared.client.post("/detokenize", json={"tokens": [size - 1]})
    assert last.status_code == 200
    refused = error(await shared.client.post("/detokenize", json={"tokens": [3, size]}), 422, "invalid_request")
    assert refused["vocab_size"] == size and str(size) in refused["error"]
    for wrong in ({}, {"tokens": [-1]}, {"tokens": ["a"]}, {"tokens": 3}, {"tokens": [1.0]}, {"tokens": [[1]]}):
        error(await shared.client.post("/detokenize", json=wrong), 422, "invalid_request")
    unknown = await shared.client.post("/detokenize", json={"tokens": [1], "text": "x"})
    error(unknown, 422, "unsupported_field")
    error(await shared.client.post("/detokenize", json={"tokens": [1], "model": "nope"}), 404, "not_found")


async def test_what_a_tokenizer_is(world: World) -> None:
    told = (await world.client.get("/tokenizer_info")).json()
    assert told == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "unk_token": None,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 512,
    }
    error(await world.client.get("/tokenizer_info", params={"model": "nope"}), 404, "not_found")


async def test_what_no_file_says_is_null(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    publish(repository)
    bare = {"tokenizer_class": None, "bos_token": None, "pad_token": "<s>", "model_max_length": 10**30}
    publish(repository, "bare", chat_template=None, tokenizer_config=bare)
    async with serving(tmp_path) as world:
        told = (await world.client.get("/tokenizer_info", params={"model": "bare:1"})).json()
    assert (told["tokenizer_class"], told["bos_token"], told["pad_token"]) == (None, None, "<s>")
    assert (told["chat_template"], told["model_max_length"]) == (None, None)


async def test_a_model_is_what_openais_client_reads(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    repository = Repository(tmp_path)
    first = publish(repository)
    publish(repository, "small", parent=first)
    async with serving(tmp_path) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        models = {model.id: model async for model in client.models.list()}
        one = await client.models.retrieve("small")
        assert models.keys() == {"demo", "demo:1", "small", "small:1"}
        assert (one.id, one.object, one.owned_by) == ("small", "model", "dosirak")
        assert one.created == models["small:1"].created > 1_700_000_000
        assert (one.root, one.parent, one.max_model_len) == ("small:1", "demo:1", 512)
        assert models["demo"].parent is None


async def test_a_key_is_needed_where_one_is_set(serve: Serve) -> None:
    async with serve(admin_key="secret") as world:
        error(await world.client.get("/tokenizer_info"), 401, "unauthorized")
        error(await world.client.post("/detokenize", json={"tokens": [1]}), 401, "unauthorized")


TOOL = {"type": "function", "function": {"name": "look", "description": "of a city"}}


async def test_tools_are_counted_as_for_an_answer(tmp_path: Path) -> None:
    publish(Repository(tmp_path), chat_template=WITH_TOOLS)
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    async with serving(tmp_path) as world:
        asked = await world.client.post("/tokenize", json={**chat, "tools": [TOOL]})
        answer = await world.client.post("/v1/chat/completions", json={**chat, "tools": [TOOL], "max_tokens": 1})
        plain = await world.client.post("/tokenize", json={**chat, "tools": []})
        assert asked.json()["count"] == answer.json()["usage"]["prompt_tokens"] > plain.json()["count"]
        assert asked.json()["tokens"] == list(world.engine.requests[-1].token_ids)
        twice = await world.client.post("/tokenize", json={**chat, "tools": [TOOL, TOOL]})
        assert "two functions 'look'" in error(twice, 422, "invalid_request")["error"]


async def test_tools_that_cannot_act_are_refused(serve: Serve) -> None:
    async with serve(generic_tools=False) as world:
        for body in ({"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}):
            answer = await world.client.post("/tokenize", json={**body, "tools": [TOOL]})
            assert "`tools`" in error(answer, 422, "unsupported_field")["error"]


@pytest.mark.asyncio(loop_scope="module")
async def test_text_is_counted_as_it_is_sent(shared: World) -> None:
    """macOS writes Hangul in parts; the model gets whole characters."""
    composed, parts = ([{"role": "user", "content": normalize(form, "도시락 하나")}] for form in ("NFC", "NFD"))
    answer = (await shared.client.post("/generate", json={"messages": parts})).json()
    for route in ("/tokenize", "/chat_tokenize"):
        one, other = [await shared.client.post(route, json={"messages": chat}) for chat in (composed, parts)]
        assert one.json() == other.json(), route
    count = (await shared.client.post("/tokenize", json={"messages": parts})).json()["count"]
    assert count == answer["usage"]["prompt_tokens"]
    for field in ("prompt", "inputs"):
        one, other = [
            await shared.client.post("/tokenize", json={field: chat[0]["content"]}) for chat in (composed, parts)
        ]
        assert one.json() == other.json(), field


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stop_string_in_parts_ends_an_answer_too(shared: World) -> None:
    stop = normalize("NFD", REPLY[7:10])
    answer = (await shared.client.post("/generate", json={"inputs": "hi", "parameters": {"stop": [stop]}})).json()
    assert (answer["generated_text"], answer["finish_reason"]) == (REPLY[:7], "stop")
