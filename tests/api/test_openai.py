"""OpenAI's routes: shapes to the letter, the four prompt forms, echo and logprobs, usage in streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest

from service.engine.protocol.messages import FinishReason
from service.text.tokenizer import Tokenizer
from tests.api.conftest import Serve
from tests.api.reading import events, openai_error
from tests.fake_service import REPLY, WINDOW, World, publish, serving

CHAT = [{"role": "user", "content": "hi"}]
CONTEXT = {"policy", "window", "reserved_output", "used", "free", "truncated", "parts", "kept", "dropped", "summarised"}


async def chat(world: World, **body: Any) -> dict[str, Any]:
    response = await world.client.post("/v1/chat/completions", json={"messages": CHAT, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def complete(world: World, prompt: Any, **body: Any) -> dict[str, Any]:
    response = await world.client.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def chunks(world: World, path: str = "/v1/chat/completions", **body: Any) -> list[dict[str, Any]]:
    given = body if "prompt" in body else {"messages": CHAT, **body}
    response = await world.client.post(path, json={"temperature": 0, **given, "stream": True})
    assert response.status_code == 200, response.text
    assert response.text.endswith("data: [DONE]\n\n")
    return events(response)


async def test_chat_completion(world: World) -> None:
    body = await chat(world, temperature=0)
    [choice] = body["choices"]
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "demo:1"
    assert choice["message"] == {"role": "assistant", "content": REPLY, "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(world.engine.requests[0].token_ids)
    assert usage["completion_tokens"] == len(world.tokenizer.encode(REPLY)) + 1
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    assert body["context"].keys() >= CONTEXT
    assert "ttft_ms" in body["timings"]


async def test_defaults_are_openais(world: World) -> None:
    await chat(world)
    await world.client.post("/v1/completions", json={"prompt": "x"})
    first, second = world.engine.requests
    assert first.params.temperature == second.params.temperature == 1.0
    assert first.params.max_tokens == WINDOW - len(first.token_ids), "the rest of the window"
    assert second.params.max_tokens == 16


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_lengths(world: World, name: str) -> None:
    body = await chat(world, **{name: 2})
    assert body["usage"]["completion_tokens"] == 2
    assert body["choices"][0]["finish_reason"] == "length"


async def test_parts_and_developer(world: World) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await chat(world, messages=[{"role": "developer", "content": "sys"}, {"role": "user", "content": parts}])
    await chat(world, messages=[{"role": "system", "content": "sys"}, {"role": "user", "content": "one\ntwo"}])
    first, second = world.engine.requests
    assert first.token_ids == second.token_ids


async def test_an_empty_text_is_a_text(world: World) -> None:
    """Of a user, of an assistant, and as a list of no parts."""
    for role in ("user", "assistant"):
        for nothing in ("", [], [{"type": "text", "text": ""}]):
            await chat(world, messages=[*CHAT, {"role": role, "content": nothing}, *CHAT])
    assert len({request.token_ids for request in world.engine.requests}) == 2, "one prompt for each role"


async def test_an_address_in_a_part_is_refused_and_not_asked_for(world: World) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}]}
    refused = openai_error(await world.client.post("/v1/chat/completions", json=body), 400, "unsupported_field")
    assert refused["param"] == "messages[0].content[1].type"


async def test_a_pattern_that_cannot_be_followed_is_no_free_text(world: World) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a$"}}, "required": ["a"]}
    body = {
        "messages": CHAT,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    refused = openai_error(await world.client.post("/v1/chat/completions", json=body), 400, "invalid_request")
    assert "regex" in refused["message"]
    assert not world.engine.requests


@pytest.mark.parametrize("name", ["tgi", "dummy", "demo", "demo:1"])
async def test_models_that_answer(world: World, name: str) -> None:
    assert (await chat(world, model=name))["model"] == "demo:1"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("include", [False, True])
async def test_stop_strings(world: World, path: str, include: bool) -> None:
    prompt = {"prompt": "x"} if path.endswith("/completions") and "chat" not in path else {"messages": CHAT}
    body = {**prompt, "stop": "하나", "temperature": 0, "include_stop_str_in_output": include, "max_tokens": 99}
    response = await world.client.post(path, json=body)
    [choice] = response.json()["choices"]
    shown = choice["text"] if "text" in choice else choice["message"]["content"]
    assert shown == "안녕하세요, 도시락 " + ("하나" if include else "")
    assert choice["finish_reason"] == "stop"


async def test_n_chat_answers(world: World) -> None:
    body = await chat(world, n=3, seed=1)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == [REPLY[turn:] + REPLY[:turn] for turn in (1, 2, 3)]
    assert body["usage"]["prompt_tokens"] == len(world.engine.requests[0].token_ids), "counted once"


async def test_chat_logprobs(world: World) -> None:
    body = await chat(world, logprobs=True, top_logprobs=2, max_tokens=3, temperature=0)
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    assert content[0]["token"] == "안녕하세요"
    assert bytes(content[0]["bytes"]).decode() == "안녕하세요"
    assert [len(each["top_logprobs"]) for each in content] == [2, 2, 2]
    assert content[0].keys() == {"token", "logprob", "bytes", "top_logprobs"}
    assert (await chat(world, logprobs=True, max_tokens=1))["choices"][0]["logprobs"]["content"][0][
        "top_logprobs"
    ] == []


async def test_chat_stream(world: World) -> None:
    shown = await chunks(world)
    assert {each["object"] for each in shown} == {"chat.completion.chunk"}
    assert len({each["id"] for each in shown}) == 1
    assert shown[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    pieces = [each["choices"][0]["delta"]["content"] for each in shown[1:-1]]
    assert "".join(pieces) == REPLY
    assert len(pieces) == len(world.tokenizer.encode(REPLY)) + 1, "one a token"
    assert shown[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all(each["choices"][0]["finish_reason"] is None for each in shown[:-1])
    assert shown[-1]["context"].keys() >= CONTEXT
    assert "usage" not in shown[-1]


async def test_usage_in_streams(world: World) -> None:
    shown = await chunks(world, stream_options={"include_usage": True}, max_tokens=3)
    assert shown[-1]["choices"] == []
    assert shown[-1]["usage"]["completion_tokens"] == 3
    assert all(each["usage"] is None for each in shown[:-1])
    shown = await chunks(world, stream_options={"include_usage": True, "continuous_usage_stats": True}, max_tokens=3)
    assert [each["usage"]["completion_tokens"] for each in shown if each["choices"]] == [1, 1, 2, 3, 3]


async def test_n_chat_streams(world: World) -> None:
    shown = await chunks(world, n=2, seed=1, temperature=1, stream_options={"include_usage": True})
    texts = {0: "", 1: ""}
    for each in shown:
        for choice in each["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: REPLY[1:] + REPLY[:1], 1: REPLY[2:] + REPLY[:2]}
    assert [not each["choices"] for each in shown].count(True) == 1
    assert shown[-1]["choices"] == []
    assert sum("timings" in each for each in shown) == 1


async def test_chat_stream_logprobs(world: World) -> None:
    shown = await chunks(world, logprobs=True, top_logprobs=1, max_tokens=2)
    content = [each["choices"][0]["logprobs"]["content"] for each in shown[1:-1]]
    assert [len(each) for each in content] == [1, 1]


PROMPTS: list[tuple[Any, list[tuple[int, ...]]]] = [
    ("abc", [(68, 69, 70)]),
    (["abc", "d"], [(68, 69, 70), (71,)]),
    ([68, 69], [(68, 69)]),
    ([[68], [69, 70]], [(68,), (69, 70)]),
]


@pytest.mark.parametrize(("prompt", "ids"), PROMPTS)
async def test_the_four_forms_of_a_prompt(world: World, prompt: Any, ids: list[tuple[int, ...]]) -> None:
    body = await complete(world, prompt, max_tokens=2)
    assert [request.token_ids for request in world.engine.requests] == ids
    assert [choice["index"] for choice in body["choices"]] == list(range(len(ids)))
    assert body["object"] == "text_completion"
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert body["usage"]["completion_tokens"] == 2 * len(ids)
    assert ("context" in body) == (len(ids) == 1)
    assert all("context" in choice for choice in body["choices"]) == (len(ids) > 1)


async def test_indices_of_several_prompts_and_answers(world: World) -> None:
    body = await complete(world, ["a", "b"], n=2, seed=0, temperature=1)
    turned = [REPLY[turn:] + REPLY[:turn] for turn in (0, 1)]
    limited = [world.tokenizer.decode(world.tokenizer.encode(text)[:16]) for text in turned]
    assert [choice["text"] for choice in body["choices"]] == [text.rstrip("\ufffd") for text in limited] * 2


async def test_echo_with_logprobs_as_lm_eval_reads_it(world: World) -> None:
    body = await complete(world, [68, 69, 70], max_tokens=1, echo=True, logprobs=1, seed=7)
    [choice] = body["choices"]
    assert choice["text"] == "abc안녕하세요"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c", "안녕하세요"]
    assert logprobs["token_logprobs"] == [None, pytest.approx(-0.319), pytest.approx(-0.32), pytest.approx(-0.588)]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["top_logprobs"][0] is None
    assert [list(top) for top in logprobs["top_logprobs"][1:]] == [["b"], ["c"], ["안녕하세요"]]
    [choice] = (await complete(world, [70, 68], max_tokens=1, echo=True, logprobs=0))["choices"]
    own = zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], strict=True)
    assert choice["logprobs"]["top_logprobs"] == [None, *({token: value} for token, value in [*own][1:])]
    assert world.engine.requests[0].params.prompt_logprobs == 1
    [choice] = (await complete(world, [68], max_tokens=3, logprobs=0))["choices"]
    assert choice["logprobs"]["text_offset"] == [0, 5, 6], "of 안녕하세요, a comma and a space"


async def test_echo_alone_asks_for_no_prompt_logprobs(world: World) -> None:
    body = await complete(world, "abc", max_tokens=1, echo=True)
    assert body["choices"][0] == {"index": 0, "text": "abc안녕하세요", "logprobs": None, "finish_reason": "length"}
    assert world.engine.requests[0].params.prompt_logprobs is None


async def test_completion_stream(world: World) -> None:
    shown = await chunks(world, "/v1/completions", prompt=["a", "b"], echo=True, logprobs=0, max_tokens=2)
    texts = {0: "", 1: ""}
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for each in shown:
        for choice in each["choices"]:
            texts[choice["index"]] += choice["text"]
            offsets[choice["index"]] += (choice["logprobs"] or {"text_offset": []})["text_offset"]
    assert texts == {0: "a안녕하세요,", 1: "b안녕하세요,"}
    assert offsets == {0: [0, 1, 6], 1: [0, 1, 6]}


async def test_best_of(world: World) -> None:
    world.engine.script = lambda request, _: [70 - request.params.seed] * 2
    body = await complete(world, "x", best_of=3, n=2, seed=0, max_tokens=2)
    assert [choice["text"] for choice in body["choices"]] == ["aa", "bb"], "the likeliest first"
    assert body["usage"]["completion_tokens"] == 6


async def test_models(world: World) -> None:
    body = (await world.client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["demo", "demo:1"]
    for reference in ("demo", "demo:1"):
        model = (await world.client.get(f"/v1/models/{reference}")).json()
        assert (model["id"], model["object"], model["root"]) == (reference, "model", "demo:1")
        assert isinstance(model["created"], int)
    openai_error(await world.client.get("/v1/models/nope"), 404, "not_found")
    openai_error(await world.client.get("/v1/models/..%2f..%2fetc"), 404, "not_found")


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags"])
async def test_a_version_that_cannot_be_read_hides_its_name_and_no_other_model(tmp_path: Path, path: str) -> None:
    """Its bare name means nothing here; a damaged version alone made every list a 503."""
    async with serving(tmp_path) as world:
        repository = world.deployments.repository
        for content in ("one", "two"):
            publish(repository, name="other", other={"content": content})
        repository.promote("other", "production", "1", "first")
        manifest = repository.path(repository.get("other", "1")) / "manifest.json"
        manifest.chmod(0o644)
        manifest.write_text("{")
        found = (await world.client.get(path)).json()
        names = {
            each.get("id") or each["name"].removesuffix(":latest") for each in found.get("data") or found["models"]
        }
        assert {"demo", "demo:1", "other:2"} <= names and "other" not in names


async def test_models_are_read_beside_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, readers = world.deployments.repository, set[int]()
    versions = repository.versions

    def read(name: str) -> Any:
        readers.add(get_ident())
        return versions(name)

    monkeypatch.setattr(repository, "versions", read)
    assert (await world.client.get("/v1/models")).status_code == 200
    assert len(readers) == 1 and get_ident() not in readers


async def test_overflow_has_openais_code(world: World) -> None:
    body = {"messages": [{"role": "user", "content": "a" * 600}], "max_tokens": 5}
    refused = openai_error(await world.client.post("/v1/chat/completions", json=body), 400, "context_length_exceeded")
    assert str(WINDOW) in refused["message"]
    assert refused["param"] == "messages"
    body = {"prompt": "a" * 500, "max_tokens": 50}
    refused = openai_error(await world.client.post("/v1/completions", json=body), 400, "context_length_exceeded")
    assert "lower max_tokens to 12" in refused["message"]
    assert refused["param"] == "prompt"


OWN_WORDS = ("inputs-7b", "max_new_tokens", "input_ids")


async def test_an_error_says_a_clients_own_words_as_they_are(world: World) -> None:
    """Names of our fields are said in the dialect's words; what the client wrote never is."""
    for word in OWN_WORDS:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "model": word}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], word: 1}),
            ("/v1/completions", {"prompt": "hi", word: 1}),
            ("/api/generate", {"prompt": "hi", "model": word}),
            ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "model": word}),
        ):
            told = (await world.client.post(path, json=body)).json()["error"]
            sentence = told if isinstance(told, str) else told["message"]
            assert word in sentence, (path, sentence)
            assert isinstance(told, str) or word not in body or told["param"] == word


async def test_a_wrong_parameter_of_an_address_is_refused_by_name(world: World) -> None:
    for path, name, rule in (
        ("/v1/models?limit=0", "limit", "at least 1"),
        ("/v1/chat/completions?limit=x", "limit", "integer"),
        ("/v1/files?order=up", "order", "asc"),
    ):
        refused = openai_error(await world.client.get(path), 400, "invalid_request")
        assert refused["param"] == name and f"`{name}`" in refused["message"] and rule in refused["message"], refused


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_alone_scores_the_prompt(world: World, stream: bool) -> None:
    body = {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 1, "stream": stream}
    response = await world.client.post("/v1/completions", json=body)
    choices = [chunk["choices"][0] for chunk in events(response)] if stream else response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "hello"
    assert choices[-1]["finish_reason"] == "length"
    scored = choices[0]["logprobs"]
    assert (len(scored["tokens"]), scored["token_logprobs"][0]) == (len(world.tokenizer.encode("hello")), None)
    assert all(value < 0 for value in scored["token_logprobs"][1:])


async def test_unknown_route_below_v1(world: World) -> None:
    openai_error(await world.client.post("/v1/images/generations", json={}), 404, "not_found")
    response = await world.client.get("/v1/completions")
    openai_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


async def test_overloaded_in_openais_words(serve: Serve) -> None:
    async with serve(max_in_progress=2) as world:
        with world.app.state.service.answers.admission.entered(1):
            response = await world.client.post("/v1/chat/completions", json={"messages": CHAT, "n": 2})
        assert openai_error(response, 503, "overloaded")["type"] == "server_error"
        assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("reason", [FinishReason.DEADLINE, FinishReason.ERROR])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", {"messages": CHAT}), ("/v1/completions", {"prompt": "x"})]
)
async def test_finish_reason_stays_in_openais_enumeration(
    serve: Serve, path: str, body: dict[str, Any], reason: FinishReason
) -> None:
    async with serve(engine={"end": reason, "fail_after": 3}) as world:
        [whole] = (await world.client.post(path, json=body)).json()["choices"]
        [last] = (await chunks(world, path, **body))[-1]["choices"]
        for choice in (whole, last):
            assert (choice["finish_reason"], choice["finish_detail"]) == ("length", reason.value)
        world.engine.fail_after = None
        [done] = (await world.client.post(path, json={**body, "max_tokens": 100})).json()["choices"]
        assert done["finish_reason"] == "stop" and "finish_detail" not in done


async def test_an_echoed_prompt_is_decoded_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = Tokenizer.decode

    def counting(self: Tokenizer, ids: Sequence[int], **options: bool) -> str:
        decoded.append(len(ids))
        return decode(self, ids, **options)

    monkeypatch.setattr(Tokenizer, "decode", counting)
    shown = await chunks(world, "/v1/completions", prompt="abc" * 50, echo=True, logprobs=0, max_tokens=20)
    assert len(shown) > 20
    assert sorted(decoded) == [64, 150], "once, and its end once, which says whether the answer goes on from a text"


async def test_offsets_count_what_the_text_shows(world: World) -> None:
    """A special token of the prompt and the bytes of one character take no room of their own."""
    ids = [1, *world.tokenizer.encode("a가b", add_special_tokens=False)]
    assert world.tokenizer.is_special(1)
    [choice] = (await complete(world, ids, max_tokens=1, echo=True, logprobs=0))["choices"]
    told = list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True))
    assert choice["text"].startswith("a가b")
    assert dict(told)["b"] == 2
    assert told[-1][1] == 3
