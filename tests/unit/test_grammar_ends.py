"""Schemas that need themselves without end, and schemas that only may."""

from __future__ import annotations

from typing import Any

from service.text.grammars import Grammar
from service.text.grammars.trial import require_end
from tests.grammars import FIELD

SELF: dict[str, Any] = {"$ref": "#"}
NODE: dict[str, Any] = {"$ref": "#/$defs/node"}


def ends(schema: Any) -> bool:
    try:
        require_end(Grammar.of_json_schema(schema, FIELD).text)
    except ValueError:
        return False
    return True


ENDLESS: list[Any] = [
    {"type": "object", "properties": {"a": SELF}, "required": ["a"]},
    {"type": "object", "additionalProperties": SELF, "required": ["a"]},
    {"type": "object", "patternProperties": {"^b": SELF}, "additionalProperties": SELF, "required": ["a"]},
    {"type": "array", "items": SELF, "minItems": 1},
    {"type": "array", "prefixItems": [{}, SELF], "minItems": 2},
    {"type": "array", "items": [SELF], "additionalItems": False, "minItems": 1},
    {"type": ["array", "object"], "items": SELF, "minItems": 1, "properties": {"a": SELF}, "required": ["a"]},
    {"anyOf": [SELF, {"type": "array", "items": SELF, "minItems": 1}]},
    {"allOf": [{"type": "object"}, {"type": "object", "properties": {"a": SELF}, "required": ["a"]}]},
    {**NODE, "$defs": {"node": {"type": "object", "properties": {"next": NODE}, "required": ["next"]}}},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": SELF}, "required": ["a"]},
]
ENDING: list[Any] = [
    {"type": "object", "properties": {"a": SELF}},
    {"properties": {"a": SELF}, "required": ["a"]},
    {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
    {"type": "array", "items": SELF},
    {"type": "array", "prefixItems": [{}, SELF], "minItems": 1},
    {"anyOf": [{"type": "null"}, {"type": "array", "items": SELF, "minItems": 1}]},
    {"type": "object", "properties": {"a": {"anyOf": [SELF, {"type": "null"}]}}, "required": ["a"]},
    {**NODE, "$defs": {"node": {"type": "object", "properties": {"next": {"oneOf": [{"type": "null"}, NODE]}}}}},
    {"enum": [1], "anyOf": [SELF]},
    {"type": "object", "properties": {"a": {"$ref": "#b"}}, "required": ["a"], "$defs": {"c": {"$anchor": "b"}}},
    {
        "type": "object",
        "properties": {"a/b": {"type": "null"}, "c": {"$ref": "#/properties/a~1b"}},
        "required": ["c"],
    },
    True,
]


def test_what_needs_itself_has_no_end_and_what_may_stop_has_one() -> None:
    assert [schema for schema in ENDLESS if ends(schema)] == []
    assert [schema for schema in ENDING if not ends(schema)] == []


def test_a_long_chain_is_looked_through_at_once() -> None:
    defs: dict[str, Any] = {
        f"a{n}": {"type": "array", "items": {"$ref": f"#/$defs/a{n + 1}"}, "minItems": 1} for n in range(600)
    }
    assert ends({"$ref": "#/$defs/a0", "$defs": {**defs, "a600": {"type": "null"}}})
    assert not ends({"$ref": "#/$defs/a0", "$defs": {**defs, "a600": {"$ref": "#/$defs/a0"}}})
