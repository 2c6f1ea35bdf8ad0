"""`/v2/models/{model}/infer`: a prompt and its parameters as tensors, in JSON or in bytes behind it."""

from __future__ import annotations

import json
import struct
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.kserve.dialect import divided, fields_of, packed
from service.api.kserve.schemas import InferBody
from service.errors import InvalidRequest
from tests.api.conftest import Serve
from tests.api.reading import triton_error as error
from tests.fake_service import REPLY, World

INFER = "/v2/models/demo/infer"
JSON_LENGTH = "Inference-Header-Content-Length"
PROMPT: dict[str, Any] = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["x"]}
THREE = "안녕하세요, "


def element(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def in_bytes(name: str, datatype: str, raw: bytes, shape: tuple[int, ...] = (1,)) -> tuple[dict[str, Any], bytes]:
    parameters = {"binary_data_size": len(raw)}
    return {"name": name, "shape": list(shape), "datatype": datatype, "parameters": parameters}, raw


def tensor(name: str, datatype: str, *data: Any, shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)] if shape is None else shape, "datatype": datatype, "data": list(data)}


async def infer(world: World, *inputs: Any, **body: Any) -> httpx.Response:
    return await world.client.post(INFER, json={"inputs": list(inputs), **body})


async def send(world: World, inputs: list[tuple[dict[str, Any], bytes]], **body: Any) -> httpx.Response:
    head = json.dumps({"inputs": [shown for shown, _ in inputs], **body}).encode()
    content = head + b"".join(raw for _, raw in inputs)
    return await world.client.post(INFER, content=content, headers={JSON_LENGTH: str(len(head))})


async def test_in_json(world: World) -> None:
    response = await infer(world, PROMPT, id="a b")
    assert response.json() == {
        "id": "a b",
        "model_name": "demo",
        "model_version": "1",
        "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [REPLY]}],
    }
    assert response.headers["x-model-version"] == "demo:1"


async def test_the_answer_has_the_prompts_shape(world: World) -> None:
    nested = {**PROMPT, "shape": [1, 1], "data": [["x"]]}
    [output] = (await infer(world, nested)).json()["outputs"]
    assert (output["shape"], output["data"]) == ([1, 1], [REPLY])


SPELLINGS: list[tuple[dict[str, Any], str, Any]] = [
    (tensor("max_tokens", "INT32", 3), "max_tokens", 3),
    (tensor("max_tokens", "UINT64", 3, shape=[1, 1]), "max_tokens", 3),
    (tensor("temperature", "FP32", 0.5), "temperature", 0.5),
    (tensor("temperature", "FP64", 1), "temperature", 1.0),
    (tensor("ignore_eos", "BOOL", True), "stop_token_ids", ()),
]


@pytest.mark.parametrize(("spelt", "name", "expected"), SPELLINGS)
async def test_parameters_are_tensors(world: World, spelt: dict[str, Any], name: str, expected: Any) -> None:
    assert (await infer(world, PROMPT, spelt)).status_code == 200
    assert getattr(world.engine.requests[-1].params, name) == expected


async def test_parameters_are_parameters(world: World) -> None:
    body = (await infer(world, PROMPT, parameters={"max_tokens": 3})).json()
    assert body["outputs"][0]["data"] == [THREE]


BINARY: list[tuple[str, str, bytes, str, Any]] = [
    ("max_tokens", "INT8", struct.pack("<b", 3), "max_tokens", 3),
    ("max_tokens", "INT16", struct.pack("<h", 3), "max_tokens", 3),
    ("max_tokens", "INT32", struct.pack("<i", 3), "max_tokens", 3),
    ("max_tokens", "INT64", struct.pack("<q", 3), "max_tokens", 3),
    ("max_tokens", "UINT8", struct.pack("<B", 3), "max_tokens", 3),
    ("max_tokens", "UINT16", struct.pack("<H", 3), "max_tokens", 3),
    ("max_tokens", "UINT32", struct.pack("<I", 3), "max_tokens", 3),
    ("max_tokens", "UINT64", struct.pack("<Q", 3), "max_tokens", 3),
    ("temperature", "FP16", struct.pack("<e", 0.5), "temperature", 0.5),
    ("temperature", "FP32", struct.pack("<f", 0.5), "temperature", 0.5),
    ("temperature", "FP64", struct.pack("<d", 0.5), "temperature", 0.5),
    ("ignore_eos", "BOOL", b"\1", "stop_token_ids", ()),
]


@pytest.mark.parametrize(("name", "datatype", "raw", "field", "expected"), BINARY)
async def test_every_datatype_in_bytes(
    world: World, name: str, datatype: str, raw: bytes, field: str, expected: Any
) -> None:
    prompt, told = in_bytes("text_input", "BYTES", element("도시락")), in_bytes(name, datatype, raw)
    assert (await send(world, [told, prompt])).status_code == 200
    request = world.engine.requests[-1]
    assert getattr(request.params, field) == expected
    assert list(request.token_ids) == world.tokenizer.encode("도시락")


async def test_stop_words_are_several_elements(world: World) -> None:
    words = in_bytes("stop_words", "BYTES", element("둘") + element("하나"), (1, 2))
    response = await send(world, [in_bytes("text_input", "BYTES", element("x")), words])
    assert response.json()["outputs"][0]["data"] == ["안녕하세요, 도시락 "]
    none = in_bytes("stop_words", "BYTES", element(""), (1, 1))
    assert (await send(world, [in_bytes("text_input", "BYTES", element("x")), none])).status_code == 200


TEXT_OUTPUT = {"name": "text_output"}
WANTED: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"parameters": {"binary_data_output": True}}, True),
    ({"parameters": {"binary_data_output": False}}, False),
    ({"outputs": []}, False),
    ({"outputs": [TEXT_OUTPUT], "parameters": {"binary_data_output": True}}, True),
    ({"outputs": [{**TEXT_OUTPUT, "parameters": {"binary_data": True}}]}, True),
    (
        {
            "outputs": [{**TEXT_OUTPUT, "parameters": {"binary_data": False}}],
            "parameters": {"binary_data_output": True},
        },
        False,
    ),
]


@pytest.mark.parametrize(("body", "binary"), WANTED)
async def test_bytes_come_where_they_are_wanted(world: World, body: dict[str, Any], binary: bool) -> None:
    response = await infer(world, PROMPT, **body)
    assert response.headers["x-model-version"] == "demo:1"
    assert (JSON_LENGTH.lower() in response.headers) == binary
    if not binary:
        assert response.json()["outputs"][0]["data"] == [REPLY]
        return
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[JSON_LENGTH])
    [output] = json.loads(response.content[:length])["outputs"]
    assert (output["parameters"], "data" in output) == ({"binary_data_size": 4 + len(REPLY.encode())}, False)
    assert response.content[length:] == element(REPLY)


@pytest.mark.parametrize("binary", [False, True])
async def test_the_same_key_gives_the_same_bytes(serve: Serve, tmp_path: Any, binary: bool) -> None:
    async with serve(database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db") as world:
        body = {"inputs": [PROMPT], "parameters": {"binary_data_output": binary, "temperature": 1.0}}
        first, again = [await world.client.post(INFER, json=body, headers={"Idempotency-Key": "a"}) for _ in range(2)]
        assert again.content == first.content
        assert again.headers["content-type"] == first.headers["content-type"]
        assert again.headers["idempotent-replayed"] == "true"
        assert len(world.engine.requests) == 1


REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([], {}, "`inputs` must have at least 1"),
    ([tensor("max_tokens", "INT32", 3)], {}, "`text_input` is missing"),
    ([PROMPT, PROMPT], {}, "'text_input' comes twice"),
    ([PROMPT, tensor("max_tokens", "INT32", 3)], {"parameters": {"max_tokens": 3}}, "`parameters.max_tokens` stands"),
    ([PROMPT, tensor("parameters", "BYTES", "x")], {}, "'parameters' comes twice"),
    ([PROMPT, tensor("id", "BYTES", "x")], {"id": "y"}, "'id' comes twice"),
    ([PROMPT, tensor("image", "UINT8", 3)], {}, "`image` is not a field"),
    ([PROMPT, tensor("bad_words", "BYTES", "x")], {}, "`bad_words` cannot act"),
    ([PROMPT, tensor("stream", "BOOL", True)], {}, "generate_stream"),
    ([PROMPT, tensor("max_tokens", "INT32", 3, 4)], {}, "`max_tokens`"),
    ([PROMPT, tensor("max_tokens", "INT32", 3, shape=[2])], {}, "has 1 elements and a shape of 2"),
    ([PROMPT, tensor("max_tokens", "INT32", 3.5)], {}, "not INT32"),
    ([PROMPT, tensor("max_tokens", "INT32", True)], {}, "not INT32"),
    ([PROMPT, tensor("max_tokens", "BYTES", 3)], {}, "not BYTES"),
    ([PROMPT, tensor("seed", "UINT8", 300)], {}, "'seed' has an element that is not UINT8"),
    ([PROMPT, tensor("seed", "UINT64", -1)], {}, "'seed' has an element that is not UINT64"),
    ([PROMPT, tensor("max_tokens", "INT16", 2**15)], {}, "not INT16"),
    ([PROMPT, tensor("temperature", "FP16", 70000.0)], {}, "not FP16"),
    ([PROMPT, tensor("temperature", "FP32", 1e39)], {}, "not FP32"),
    ([PROMPT, tensor("temperature", "FP32", "0.5")], {}, "not FP32"),
    ([PROMPT, tensor("temperature", "FP32", {})], {}, "not FP32"),
    ([PROMPT, tensor("temperature", "BF16", 0.5)], {}, "`inputs[1].datatype`"),
    ([tensor("text_input", "INT32", 5)], {}, "`text_input` must be a valid string"),
    ([tensor("text_input", "BYTES", "x", "y")], {}, "one element"),
    ([tensor("text_input", "BYTES")], {}, "one element"),
    ([{**PROMPT, "shape": [-1]}], {}, "`inputs[0].shape[0]`"),
    ([{**PROMPT, "shape": [1] * 9}], {}, "`inputs[0].shape`"),
    ([{**PROMPT, "shape": [2**62, 2**62]}], {}, "has 1 elements"),
    ([{**PROMPT, "parameters": {"shared_memory_region": "a"}}], {}, "shared_memory_region` cannot act"),
    ([{**PROMPT, "parameters": {"binary_data_size": 5}}], {}, "data and binary_data_size"),
    ([{"name": "text_input", "shape": [1], "datatype": "BYTES"}], {}, "has 0 elements"),
    ([PROMPT], {"outputs": [{"name": "logits"}]}, "`outputs[0].name`"),
    ([PROMPT], {"outputs": [{**TEXT_OUTPUT, "parameters": {"classification": 3}}]}, "classification` cannot act"),
    ([PROMPT], {"parameters": {"binary_data_output": 1}}, "`parameters.binary_data_output`"),
    ([PROMPT], {"parameters": {"sequence_id": 3}}, "`sequence_id` cannot act"),
    ([PROMPT], {"parameters": {"timeout": 1000}}, "`timeout` cannot act"),
    ([PROMPT], {"model_name": "demo"}, "`model_name` is not a field"),
    ([PROMPT] * 65, {}, "`inputs` must have at most 64"),
]


@pytest.mark.parametrize(("inputs", "body", "sentence"), REFUSED)
async def test_what_cannot_act_is_refused_by_name(
    world: World, inputs: list[Any], body: dict[str, Any], sentence: str
) -> None:
    assert sentence in error(await infer(world, *inputs, **body), 400)
    assert world.engine.requests == []


@pytest.mark.parametrize("words", [["", ""], ["", "하나"], [""]])
async def test_empty_words_in_a_tensor_ask_for_nothing(world: World, words: list[str]) -> None:
    answer = await infer(world, PROMPT, tensor("stop_words", "BYTES", *words))
    [text] = answer.json()["outputs"][0]["data"]
    assert text == ("안녕하세요, 도시락 " if "하나" in words else REPLY)


@pytest.mark.parametrize(("datatype", "seed"), [("UINT8", 255), ("INT8", 127), ("UINT32", 2**32 - 1), ("INT64", 2**62)])
async def test_the_largest_elements_of_a_datatype_fit(world: World, datatype: str, seed: int) -> None:
    assert (await infer(world, PROMPT, tensor("seed", datatype, seed))).status_code == 200
    assert world.engine.requests[-1].params.seed == seed


X = in_bytes("text_input", "BYTES", element("x"))
BROKEN: list[tuple[list[tuple[dict[str, Any], bytes]], str]] = [
    ([(X[0], X[1][:-1])], "5 bytes behind the JSON, and 4 came"),
    ([(X[0], X[1] + b"!")], "1 bytes behind the JSON belong to no tensor"),
    ([in_bytes("text_input", "BYTES", b"\1\0\0")], "ends inside an element"),
    ([in_bytes("text_input", "BYTES", b"\2\0\0\0x")], "ends inside an element"),
    ([in_bytes("text_input", "BYTES", b"\xff\xff\xff\xffx")], "ends inside an element"),
    ([in_bytes("text_input", "BYTES", b"\1\0\0\0\xff")], "not UTF-8"),
    ([in_bytes("text_input", "BYTES", element("\x00x"), (2,))], "has 1 elements and a shape of 2"),
    ([X, in_bytes("max_tokens", "INT32", b"\1\0\0")], "no number of INT32"),
    ([X, in_bytes("max_tokens", "INT32", b"\1\0\0\0\1\0\0\0")], "has 2 elements and a shape of 1"),
    ([X, in_bytes("temperature", "FP32", struct.pack("<f", float("nan")))], "`temperature`"),
    ([X, in_bytes("seed", "UINT64", struct.pack("<Q", 2**64 - 1))], "`seed`"),
]


@pytest.mark.parametrize(("inputs", "sentence"), BROKEN)
async def test_bytes_that_are_not_what_they_say(
    world: World, inputs: list[tuple[dict[str, Any], bytes]], sentence: str
) -> None:
    assert sentence in error(await send(world, inputs), 400)
    assert world.engine.requests == []


@pytest.mark.parametrize("length", ["x", "-1", "", "1.5", "99999", "9" * 40, "²"])
async def test_a_json_length_that_the_body_does_not_have(shared: World, length: str) -> None:
    content = json.dumps({"inputs": [PROMPT]}).encode()
    response = await shared.client.post(INFER, content=content, headers={JSON_LENGTH.encode(): length.encode()})
    assert JSON_LENGTH in error(response, 400)


@given(st.binary(max_size=40), st.integers(0, 44), st.sampled_from(["BYTES", "INT32", "FP64", "BOOL"]))
def test_any_bytes_are_read_or_refused(raw: bytes, size: int, datatype: str) -> None:
    shown = {"name": "a", "shape": [1], "datatype": datatype, "parameters": {"binary_data_size": size}}
    body = InferBody.model_validate({"inputs": [shown]})
    try:
        fields = fields_of(body, raw)
    except InvalidRequest:
        return
    assert size == len(raw) and "a" in fields


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_packing_keeps_every_text(text: str) -> None:
    whole = json.dumps({"outputs": [{"name": "text_output", "data": [text]}]}).encode()
    content, length = packed(whole)
    head, behind = divided(content, str(length))
    assert behind == element(text)
    assert json.loads(head)["outputs"] == [{"name": "text_output", "parameters": {"binary_data_size": len(behind)}}]
