"""Kinds are what a schema's values can be in JSON: `{"anyOf": [{"type": "string"}, {"const": null}]}` are string, null.

A form of calls that writes texts without quotes needs the kinds to tell a text from a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from service.text.grammars.json_schema import NOTES
from service.text.grammars.unions import pointed

ALL: Final = frozenset({"null", "boolean", "number", "string", "array", "object"})
TEXT: Final = frozenset({"string"})
TEXT_OR_NULL: Final = frozenset({"string", "null"})
_TEXTS: Final = {"type": "string"}
_MOST_LEVELS: Final = 16
_KINDS: Final[Mapping[type, str]] = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object",
}  # fmt: skip


def kind_of(value: Any) -> str:
    return _KINDS[type(value)]


def kinds_of(schema: Any, top: Any, level: int = 0) -> frozenset[str]:
    """Returns the kinds of a schema's values, all where nothing tells. `top` is the whole schema, in which `$ref`
    point."""
    schema = target_of(schema, top)
    if not isinstance(schema, dict) or level > _MOST_LEVELS:
        return ALL
    types, kinds = schema.get("type"), ALL
    if isinstance(types, str | list):
        types = [types] if isinstance(types, str) else types
        kinds &= {"number" if each == "integer" else str(each) for each in types}
    constants = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(constants, list):
        kinds &= {kind_of(each) for each in constants}
    for options in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(options, list):
            kinds &= frozenset[str]().union(*(kinds_of(each, top, level + 1) for each in options))
    return kinds


def target_of(schema: Any, top: Any) -> Any:
    """Returns the schema that a reference leads to; another as it is."""
    for _ in range(_MOST_LEVELS):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = pointed(top, schema["$ref"])
    return True


def is_free(schema: Any) -> bool:
    """Whether a schema allows every value."""
    return schema is True or (isinstance(schema, dict) and not schema.keys() - NOTES)


def is_tagged_json(schema: Any, top: Any) -> bool:
    """Whether a value between two tags is JSON; else it is a text as it stands, or null."""
    return not is_free(schema) and kinds_of(schema, top) not in (TEXT, TEXT_OR_NULL)


def schema_of(schema: Any, name: str) -> Any:
    """Returns the schema of the argument of this name; one of texts where nothing tells."""
    if not isinstance(schema, dict):
        return _TEXTS
    named, other = schema.get("properties"), schema.get("additionalProperties")
    known = named if isinstance(named, dict) else {}
    return known.get(name, other if isinstance(other, dict) else _TEXTS)
