"""Unions in bodies: an error names the field as the client wrote it, never a Python type, and says the forms that are
allowed. The unions are those of all wire models, so a new one without a tag fails here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from service.api.http.errors import is_hidden, refusal_about
from service.api.router import PARTS
from service.api.shared.schemas import Wire
from service.api.shared.unions import BY_TYPE
from tests.fake_service import World

HI = [{"role": "user", "content": "hello"}]
CALLS = {"tools": [{"type": "function", "name": "f"}]}
VALUES: tuple[Any, ...] = (5, 1.5, "?", True, [], [5], [[]], {}, {"?": 1}, {"type": "function"}, {"type": "?"}, None)
PLACE = re.compile(r"(\??|[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_?][A-Za-z_0-9]*|\[[0-9]+\])*|\[[0-9]+\](\.\w+|\[[0-9]+\])*)")


def wire_models(model: type[Wire] = Wire) -> Iterator[type[Wire]]:
    assert PARTS
    for each in model.__subclasses__():
        yield each
        yield from wire_models(each)


def unions(schema: Any, definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The unions in a core schema. What OpenAPI shows in a schema's place is not validated."""
    if isinstance(schema, list | tuple):
        for each in schema:
            yield from unions(each, definitions)
    elif isinstance(schema, dict):
        definitions |= {each["ref"]: each for each in schema.get("definitions", ())}
        if schema.get("type") in ("union", "tagged-union"):
            yield schema
        for key, value in schema.items():
            if key not in ("json_schema_input_schema", "metadata", "serialization"):
                yield from unions(value, definitions)


CENSUS: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
for _model in sorted(set(wire_models()), key=lambda each: each.__name__):
    _definitions: dict[str, Any] = {}
    CENSUS += [(_model.__name__, each, _definitions) for each in unions(_model.__pydantic_core_schema__, _definitions)]


def test_every_union_of_every_body_is_told_apart_by_a_hidden_tag() -> None:
    assert {name for name, _, _ in CENSUS} >= {"SessionBody", "GrammarFields", "ResponseBody", "DeploymentBody"}
    without = [(name, str(each)[:200]) for name, each, _ in CENSUS if each["type"] != "tagged-union"]
    assert not without, "annotate the union with BY_TYPE, or give it a Discriminator"
    shown = [(name, tag) for name, each, _ in CENSUS for tag in each["choices"] if not is_hidden(tag)]
    assert not shown, "name the tags by `hidden`"


def test_no_error_of_a_union_names_a_type() -> None:
    told = set()
    for name, union, definitions in CENSUS:
        schema = {"type": "definitions", "schema": union, "definitions": list(definitions.values())}
        validator = SchemaValidator(schema)
        for value in VALUES:
            try:
                validator.validate_python(value)
            except ValidationError as error:
                details = error.errors(include_url=False)
                told |= {(name, refusal.param or "", refusal.message) for refusal in map(refusal_about, details)}
    assert told
    assert [each for each in told if not PLACE.fullmatch(each[1])] == []
    assert [each for each in told if "instance of" in each[2] or "function-" in each[2] or "dict" in each[2]] == []


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (
            "/v1/responses",
            {"input": "hi", **CALLS, "tool_choice": "any"},
            "`tool_choice` must be 'none', 'auto' or 'required'",
        ),
        (
            "/v1/responses",
            {"input": "hi", **CALLS, "tool_choice": 5},
            "`tool_choice` must be an object, 'none', 'auto' or 'required'",
        ),
        (
            "/v1/responses",
            {"input": "hi", **CALLS, "tool_choice": {"type": "function"}},
            "`tool_choice.name` is missing: add it",
        ),
        (
            "/v1/chat/completions",
            {"messages": HI, "tool_choice": 5},
            "`tool_choice` must be an object, 'none', 'auto' or 'required'",
        ),
        (
            "/v1/chat/completions",
            {"messages": HI, "tool_choice": ""},
            "`tool_choice` must match ^[A-Za-z0-9_.:-]{1,128}$",
        ),
        ("/v1/responses", {"input": "hi", "conversation": ""}, "`conversation` must have at least 1 characters"),
        ("/v1/responses", {"input": [5]}, "`input[0]` must be an item, such as a message with role and content"),
        ("/v1/responses", {"input": "hi", "conversation": 5}, "`conversation` must be an object"),
        ("/api/chat", {"model": "demo", "messages": HI, "think": "max"}, "`think` must be 'low', 'medium' or 'high'"),
        (
            "/api/chat",
            {"model": "demo", "messages": HI, "think": 5},
            "`think` must be 'low', 'medium', 'high', true or false",
        ),
        (
            "/generate",
            {"messages": HI, "parameters": {"grammar": {"type": "choice", "value": []}}},
            "`parameters.grammar.value` must have at least 1 item(s)",
        ),
        (
            "/generate",
            {"messages": HI, "parameters": {"grammar": {"type": "choice", "value": [1]}}},
            "`parameters.grammar.value[0]` must be a valid string",
        ),
        (
            "/generate",
            {"messages": HI, "parameters": {"grammar": {"type": "json", "value": 5}}},
            "`parameters.grammar.value` must be an object, a list, a string, true or false",
        ),
        (
            "/v1/chat/completions",
            {"messages": HI, "guided_json": 5},
            "`guided_json` must be an object, a string, true or false",
        ),
        ("/v1/sessions", {"ttl_seconds": "x"}, "`ttl_seconds` must be a number"),
        (
            "/v1/chat/completions",
            {"messages": HI, "chat_template_kwargs": {"a": [1]}},
            "`chat_template_kwargs.a` must be a string, a number, true or false",
        ),
        (
            "/v1/deployments",
            {"model": "demo:1", "engine": "vllm", "engine_options": {"tensor_parallel": 1.5}},
            "`engine_options.tensor_parallel` must be a string or a whole number",
        ),
    ],
)
async def test_a_wrong_form_names_its_field_and_the_forms(
    world: World, path: str, body: dict[str, Any], sentence: str
) -> None:
    answer = await world.client.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code in (400, 422)
    assert (error["message"] if isinstance(error, dict) else error) == sentence
    if isinstance(error, dict):
        assert error["param"] == sentence.split("`")[1]


def test_whole_numbers_are_numbers_but_where_a_member_takes_them() -> None:
    both: TypeAdapter[Any] = TypeAdapter(Annotated[float | int, BY_TYPE])
    one: TypeAdapter[Any] = TypeAdapter(Annotated[float | str, BY_TYPE])
    assert [type(each.validate_python(value)) for each, value in ((both, 5), (both, 1.5), (one, 5))] == [
        int,
        float,
        float,
    ]
    assert both.json_schema() == {"anyOf": [{"type": "integer"}, {"type": "number"}]}
