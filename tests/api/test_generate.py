"""`/generate` in one piece: shapes, counts, stops, several sequences, Triton's dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from service.context.prompt import Text
from service.engine.protocol.messages import FinishReason, Request, StepOutput
from service.generation.output_sequence import OutputSequence
from service.generation.request import GenerationRequest
from service.text.tokenizer import Tokenizer
from tests.api.conftest import Serve
from tests.api.reading import error
from tests.fake_service import INFO, REPLY, WINDOW, World

CHAT = [{"role": "user", "content": "안녕하세요"}]


async def ask(world: World, status: int = 200, path: str = "/generate", **body: Any) -> dict[str, Any]:
    response = await world.client.post(path, json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("path", ["/generate", "/"])
async def test_answer_says_who_spoke_and_what_it_cost(world: World, path: str) -> None:
    response = await world.client.post(path, json={"inputs": "도시락"})
    body = response.json()
    manifest = world.deployments.resolve(None)
    assert body.keys() == {
        *("generated_text", "id", "model", "version", "digest", "finish_reason", "usage", "timings", "context")
    }
    assert body["generated_text"] == REPLY
    assert (body["model"], body["version"], body["digest"]) == ("demo:1", "1", manifest.short_digest)
    assert body["timings"].keys() == {
        *("queue_ms", "prefill_ms", "ttft_ms", "decode_ms", "total_ms", "tokens_per_second", "batch_size_mean")
    }
    assert body["timings"]["queue_ms"] == 1.0
    assert response.headers["x-model-version"] == "demo:1"
    assert response.headers["x-context-truncated"] == "false"
    assert response.headers["x-context-dropped-tokens"] == "0"
    assert response.headers["x-request-id"]
    assert "\\u" not in response.text, "Hangul travels as bytes"


async def test_usage_counts_every_sampled_token_the_end_token_too(world: World) -> None:
    body = await ask(world, inputs="도시락", parameters={"details": True})
    prompt = world.tokenizer.encode("도시락")
    reply = world.tokenizer.encode(REPLY, add_special_tokens=False)
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(reply) + 1,
        "total_tokens": len(prompt) + len(reply) + 1,
        "cached_tokens": 3,
        "prompt_tokens_before_truncation": len(prompt),
    }
    details = body["details"]
    assert details["finish_reason"] == "eos_token"
    assert details["generated_tokens"] == len(details["tokens"]) == len(reply) + 1
    assert details["tokens"][-1] == {"id": 3, "text": "", "logprob": -0.253, "special": True}
    assert "".join(token["text"] for token in details["tokens"]) == REPLY
    assert body["context"]["cached_tokens"] == 3


async def test_receipt_is_the_prompt_that_the_engine_received(world: World) -> None:
    body = await ask(world, messages=[{"role": "system", "content": "short"}, *CHAT])
    [request] = world.engine.requests
    receipt = body["context"]
    assert receipt["used"] == sum(receipt["parts"].values()) == len(request.token_ids) == body["usage"]["prompt_tokens"]
    assert receipt["kept"] == ["m_0", "m_1"]
    assert receipt["reserved_output"] == 128


async def test_ids_are_taken_as_they_are(world: World) -> None:
    await ask(world, input_ids=[5, 6, 7])
    assert world.engine.requests[0].token_ids == (5, 6, 7)


@pytest.mark.parametrize("name", ["max_new_tokens", "max_tokens"])
async def test_length_ends_with_length(world: World, name: str) -> None:
    body = await ask(world, inputs="x", parameters={name: 2, "details": True})
    assert body["finish_reason"] == body["details"]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("stop", "before"), [(["하나"], "안녕하세요, 도시락 "), (["☂", "o w"], REPLY[:-7]), (["world"], REPLY[:-5])]
)
async def test_stop_string_is_cut_and_aborts_the_engine(world: World, stop: list[str], before: str) -> None:
    body = await ask(world, inputs="x", parameters={"stop": stop, "details": True, "ignore_eos": True})
    assert body["generated_text"] == before
    assert body["finish_reason"] == "stop"
    assert body["details"]["finish_reason"] == "stop_sequence"
    assert body["usage"]["completion_tokens"] == len(body["details"]["tokens"])
    assert world.engine.aborted == {world.engine.requests[0].id}
    assert not world.engine.alive


async def test_stop_string_counts_up_to_the_token_that_completed_it(serve: Serve) -> None:
    async with serve(engine={"per_step": 30}) as world:
        body = await ask(world, inputs="x", parameters={"stop": "하나"})
        tokens = world.tokenizer.encode(REPLY, add_special_tokens=False)
        needed = next(n for n in range(len(tokens)) if "하나" in world.tokenizer.decode(tokens[:n]))
        assert body["usage"]["completion_tokens"] == needed


async def test_include_stop(world: World) -> None:
    body = await ask(world, inputs="x", parameters={"stop": ["하나"], "include_stop": True})
    assert body["generated_text"] == "안녕하세요, 도시락 하나"


@pytest.mark.parametrize(("include", "text"), [(False, "b"), (True, "ba")])
async def test_a_stop_token_that_is_an_ordinary_one_is_cut(world: World, include: bool, text: str) -> None:
    [letter, end] = world.tokenizer.encode("ba")
    sequence = OutputSequence(0, 0, GenerationRequest("x", Text("x"), include_stop=include), world.tokenizer, (end,))
    sequence.accept(StepOutput("x", (end, letter)), None)
    assert sequence.text == "ab", "only the last token ended it"
    sequence = OutputSequence(0, 0, GenerationRequest("x", Text("x"), include_stop=include), world.tokenizer, (end,))
    sequence.accept(StepOutput("x", (letter, end), finish_reason=FinishReason.STOP), None)
    assert (sequence.text, len(sequence.tokens)) == (text, 2)


async def test_min_new_tokens_reaches_engine_and_stop_strings(world: World) -> None:
    body = await ask(world, inputs="x", parameters={"stop": ["안녕"], "min_new_tokens": 20})
    assert body["usage"]["completion_tokens"] > 20
    assert world.engine.requests[0].params.min_tokens == 20


async def test_return_full_text(world: World) -> None:
    body = await ask(world, inputs="도시락 ", parameters={"return_full_text": True})
    assert body["generated_text"] == "도시락 " + REPLY


async def test_truncate_keeps_the_end_and_says_so(world: World) -> None:
    response = await world.client.post("/generate", json={"inputs": "abcdefgh", "parameters": {"truncate": 3}})
    assert world.engine.requests[0].token_ids == tuple(world.tokenizer.encode("fgh"))
    assert response.json()["usage"]["prompt_tokens_before_truncation"] == 8
    assert response.headers["x-context-truncated"] == "true"
    assert response.headers["x-context-dropped-tokens"] == "5"


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({}, 0.0),
        ({"do_sample": False}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.7}, 0.7),
        ({"do_sample": True, "temperature": 0}, 0.0),
        ({"do_sample": False, "temperature": 0.7}, 0.7),  # as in TGI, where LangChain sends exactly this
        ({"top_p": 0.9}, 1.0),
        ({"top_p": 1.0, "typical_p": 1.0, "top_k": 0, "min_p": 0.0}, 0.0),
        ({"top_k": 5}, 1.0),
        ({"seed": 4}, 0.0),
    ],
)
async def test_greedy_unless_sampling_is_asked_for(
    world: World, parameters: dict[str, Any], temperature: float
) -> None:
    await ask(world, inputs="x", parameters={**parameters, "max_new_tokens": 1})
    assert world.engine.requests[0].params.temperature == temperature


async def test_seed_is_drawn_and_reported(world: World) -> None:
    first = await ask(world, inputs="x", parameters={"do_sample": True, "details": True})
    again = await ask(
        world, inputs="x", parameters={"do_sample": True, "details": True, "seed": first["details"]["seed"]}
    )
    assert first["generated_text"] == again["generated_text"]
    assert 0 <= first["details"]["seed"] < 2**63


async def test_n_answers_differ_by_their_seed(world: World) -> None:
    body = await ask(world, inputs="x", parameters={"n": 3, "seed": 1, "temperature": 1, "details": True})
    assert [request.params.seed for request in world.engine.requests] == [1, 2, 3]
    assert body["generated_texts"] == [REPLY[turn:] + REPLY[:turn] for turn in (1, 2, 3)]
    assert body["generated_text"] == body["generated_texts"][0]
    assert len(body["details"]["best_of_sequences"]) == 2
    assert body["usage"]["prompt_tokens"] == 1


async def test_others_start_when_the_prompt_can_be_shared(world: World) -> None:
    seen: list[int] = []

    def script(request: Request, tokenizer: Tokenizer) -> list[int]:
        seen.append(world.engine.stats.steps_total)
        return [5, 6, 7, 3]

    world.engine.script = script
    await ask(world, inputs="x", parameters={"n": 3})
    assert seen[0] == 0
    assert all(steps >= 1 for steps in seen[1:])


async def test_best_of_answers_with_the_likeliest(world: World) -> None:
    world.engine.script = lambda request, _: [10 - request.params.seed] * 4
    body = await ask(world, inputs="x", parameters={"best_of": 4, "seed": 0, "max_new_tokens": 4, "details": True})
    assert [token["id"] for token in body["details"]["tokens"]] == [7] * 4, "logprob falls with the id"
    assert len(body["details"]["best_of_sequences"]) == 3
    assert body["usage"]["completion_tokens"] == 16, "all that was sampled"


async def test_best_of_answers_with_none_that_a_failure_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.engine.script = lambda request, _: [10 - request.params.seed] * 4
    plain = world.engine._outputs

    async def outputs(request: Request) -> AsyncGenerator[StepOutput, None]:
        async for output in plain(request):
            if request.params.seed == 3 and output.finish_reason is not None:
                output = msgspec.structs.replace(output, finish_reason=FinishReason.ERROR)
            yield output

    monkeypatch.setattr(world.engine, "_outputs", outputs)
    body = await ask(world, inputs="x", parameters={"best_of": 4, "seed": 0, "max_new_tokens": 4, "details": True})
    assert [token["id"] for token in body["details"]["tokens"]] == [8] * 4, "the likeliest of the whole ones"


async def test_top_tokens_and_prefill(world: World) -> None:
    parameters = {"details": True, "top_n_tokens": 2, "decoder_input_details": True, "max_new_tokens": 2}
    details = (await ask(world, inputs="abc", parameters=parameters))["details"]
    assert [len(top) for top in details["top_tokens"]] == [2, 2]
    assert [token["text"] for token in details["prefill"]] == ["a", "b", "c"]
    assert [token["logprob"] is None for token in details["prefill"]] == [True, False, False]


@pytest.mark.parametrize(
    ("parameters", "shown"), [({"top_n_tokens": 2}, "top_tokens"), ({"decoder_input_details": True}, "prefill")]
)
async def test_tokens_that_are_wanted_are_told_without_details(
    world: World, parameters: dict[str, Any], shown: str
) -> None:
    for beside in ({}, {"details": False}):
        details = (await ask(world, inputs="abc", parameters={**parameters, **beside}))["details"]
        assert details[shown] and details["tokens"][0]["logprob"] is not None


async def test_request_id_of_body_and_header(world: World) -> None:
    response = await world.client.post("/generate", json={"inputs": "x", "request_id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    response = await world.client.post("/generate", json={"inputs": ""}, headers={"X-Request-Id": "mine-2"})
    assert error(response, 422, "invalid_request")["request_id"] == "mine-2"
    response = await world.client.post("/generate", json={"inputs": ""}, headers={"X-Request-Id": "no\tgood"})
    assert response.headers["x-request-id"] != "no\tgood"


async def test_requests_of_one_id_at_once_are_two(world: World) -> None:
    body: dict[str, Any] = {"inputs": "x", "request_id": "mine", "parameters": {"do_sample": True, "details": True}}
    sent = (world.client.post("/generate", json=body, headers={"X-Request-Id": "mine"}) for _ in range(3))
    answers = [each.json() for each in await asyncio.gather(*sent)]
    assert len({request.id for request in world.engine.requests}) == len({each["id"] for each in answers}) == 3
    for each in answers:
        again = {**body, "parameters": {**body["parameters"], "seed": each["details"]["seed"]}}
        assert (await ask(world, **again))["generated_text"] == each["generated_text"], "nobody has another's text"


async def test_triton_is_answered_in_its_shape(world: World) -> None:
    parameters = {"max_tokens": 3, "bad_words": [""], "stop_words": [""]}
    body = await ask(world, text_input="hi", parameters=parameters, stream=False)
    assert body == {"model_name": "demo", "model_version": "1", "text_output": "안녕하세요, "}


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/v1/context/preview"])
async def test_what_tritons_shape_has_no_place_for_is_refused_by_name(world: World, path: str) -> None:
    unshown: dict[str, Any] = {"n": 3, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
    for name, value in {**unshown, "return_full_text": True}.items():
        response = await world.client.post(path, json={"text_input": "hi", "parameters": {name: value}})
        assert f"`parameters.{name}` " in error(response, 422, "unsupported_field")["error"]
    assert world.engine.requests == []
    none: dict[str, Any] = {"n": 1, "best_of": 1, "details": False, "top_n_tokens": 0, "return_full_text": False}
    await ask(world, path=path.replace("_stream", ""), text_input="hi", parameters=none)


@pytest.mark.parametrize("words", ["", [""], ["", ""], []])
async def test_empty_words_of_triton_ask_for_nothing(world: World, words: Any) -> None:
    body = await ask(world, text_input="hi", parameters={"bad_words": words, "stop_words": words})
    assert body["text_output"] == REPLY


async def test_a_stream_says_how_to_get_an_answer_in_one_piece(world: World) -> None:
    """What is sent already is no advice."""
    for path, advice in (("/generate", "or send stream false"), ("/generate_stream", "to /generate with stream false")):
        body = {"inputs": "hi", "stream": path == "/generate", "parameters": {"best_of": 2}}
        refused = error(await world.client.post(path, json=body), 422, "unsupported_field")["error"]
        assert "`parameters.best_of`" in refused and refused.endswith(advice)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/generate", {"inputs": "x", "parameters": {"min_new_tokens": 200}}, "parameters.min_new_tokens"),
        ("/v1/context/preview", {"inputs": "x", "parameters": {"min_new_tokens": 200}}, "parameters.min_new_tokens"),
        ("/v2/models/demo/generate", {"text_input": "x", "min_tokens": 200}, "min_tokens"),
        ("/v2/models/demo/generate", {"text_input": "x", "parameters": {"min_length": 200}}, "min_length"),
    ],
)
async def test_a_minimum_above_the_default_maximum_is_refused_with_its_number(
    world: World, path: str, body: dict[str, Any], name: str
) -> None:
    response = await world.client.post(path, json=body)
    assert response.status_code in (400, 422)
    assert f"`{name}` is 200, and without max_new_tokens an answer has at most 128" in response.json()["error"]
    assert world.engine.requests == []


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", {"messages": CHAT, "min_tokens": WINDOW}, "min_tokens"),
        (
            "/generate",
            {
                "inputs": "a" * 300,
                "parameters": {"min_new_tokens": 400, "max_new_tokens": 400},
                "context": {"reserve_output_tokens": 10},
            },
            "parameters.min_new_tokens",
        ),
    ],
)
async def test_a_minimum_past_the_window_is_refused_with_the_room_that_is_left(
    world: World, path: str, body: dict[str, Any], name: str
) -> None:
    response = await world.client.post(path, json=body)
    told = response.json()["error"]
    sentence, least = (told["message"] if isinstance(told, dict) else told), 400 if "inputs" in body else WINDOW
    assert response.status_code in (400, 422) and f"`{name}` is {least}, and " in sentence
    assert world.engine.requests == []
    if "inputs" in body:
        preview = await ask(world, path="/v1/context/preview", **body)
        numbers = {"window": WINDOW, "needed_tokens": 700, "reserve": 400, "prompt_tokens": 300}
        assert preview["would_refuse"] and preview | numbers == preview


async def test_a_minimum_that_fits_is_kept_whole(world: World) -> None:
    body: dict[str, Any] = {"messages": CHAT, "min_tokens": 300}
    assert (await world.client.post("/v1/chat/completions", json=body)).status_code == 200
    assert world.engine.requests[-1].params.min_tokens == 300


async def test_overflow_names_its_numbers(world: World) -> None:
    response = await world.client.post("/generate", json={"inputs": "a" * 500, "parameters": {"max_new_tokens": 100}})
    body = error(response, 422, "context_overflow")
    assert (body["window"], body["needed_tokens"], body["reserve"]) == (WINDOW, 600, 100)
    assert world.engine.requests == []


async def test_pool_smaller_than_the_window(serve: Serve) -> None:
    async with serve() as world:
        world.engine.info = msgspec.structs.replace(INFO, blocks_total=4)
        response = await world.client.post("/generate", json={"inputs": "a" * 60, "parameters": {"max_new_tokens": 10}})
        body = error(response, 422, "context_overflow")
        assert (body["window"], body["needed_tokens"], body["reserve"]) == (64, 70, 10)
        chat = await world.client.post("/v1/chat/completions", json={"messages": CHAT})
        assert chat.json()["usage"]["completion_tokens"] <= 64, "an open length takes what the pool has"


@pytest.mark.parametrize("end", [FinishReason.ERROR, FinishReason.DEADLINE])
async def test_an_end_after_some_tokens_keeps_the_text(serve: Serve, end: FinishReason) -> None:
    async with serve(engine={"end": end, "fail_after": 2}) as world:
        body = await ask(world, inputs="x", deadline_ms=60_000, parameters={"details": True})
        assert (body["generated_text"], body["finish_reason"]) == ("안녕하세요,", end.value)
        assert body["usage"]["completion_tokens"] == 2
        assert body["details"]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (FinishReason.ERROR, 500, "generation_failed"),
        (FinishReason.DEADLINE, 504, "deadline_exceeded"),
        (FinishReason.ABORT, 503, "unavailable"),
    ],
)
async def test_an_end_before_any_token_is_an_error(serve: Serve, end: FinishReason, status: int, code: str) -> None:
    async with serve(engine={"end": end, "fail_after": 0}) as world:
        response = await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 60_000})
        error(response, status, code)
        assert ("retry-after" in response.headers) == (code == "unavailable")
