"""Unions of a JSON schema: options of `oneOf` that exclude each other are those of `anyOf`, which the compiler keeps.

The compiler (llguidance) sees for itself that a number is no string. It does not see what discriminated unions of
Pydantic and others say: the options are objects, and each has its own value of one required property.

    {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}     Cat.kind is "cat", Dog.kind is "dog"
        ─▶ {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote

_KINDS: Final = frozenset({"null", "boolean", "number", "string", "array", "object"})
_MOST_REFERENCES: Final = 16
"""From one schema to the next, until a schema without a reference."""


def with_plain_unions(schema: Any, top: Any) -> Any:
    """Returns the schema with `anyOf` for each `oneOf` whose options exclude each other. `top` is the whole schema, in
    which `$ref` of a JSON pointer point."""
    if isinstance(schema, list):
        return [with_plain_unions(each, top) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        word: value if word in ("const", "enum") else with_plain_unions(value, top) for word, value in schema.items()
    }
    options = kept.get("oneOf")
    if isinstance(options, list) and "anyOf" not in kept and _exclude_each_other(options, top):
        kept["anyOf"] = kept.pop("oneOf")
    return kept


def pointed(top: Any, reference: str) -> Any:
    """Returns the schema that a JSON pointer names; true for what is named otherwise, which is not looked up."""
    place, _, pointer = reference.partition("#")
    if place or (pointer and not pointer.startswith("/")):
        return True
    schema = top
    for step in pointer.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        try:
            schema = schema[int(name)] if isinstance(schema, list) else schema[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return True
    return schema


def _exclude_each_other(options: Sequence[Any], top: Any) -> bool:
    """Whether no value fits two of the options, as far as types and the strings of required properties tell."""
    found = [_followed(each, top) for each in options]
    objects = [each for each in found if each.get("type") == "object"]
    kinds = chain.from_iterable(_kinds(each) for each in found if each.get("type") != "object")
    if not _differ([*kinds, *["object"][: len(objects)]]):
        return False
    tags = [_tags(each, top) for each in objects]
    shared = set(tags[0]).intersection(*tags[1:]) if tags else set[str]()
    return len(objects) < 2 or any(_differ(chain.from_iterable(each[name] for each in tags)) for name in shared)


def _differ(values: Iterable[str]) -> bool:
    found = list(values)
    return len(set(found)) == len(found)


def _followed(schema: Any, top: Any) -> Mapping[str, Any]:
    """Returns a schema that allows all that this one does: where it is a reference, the one that it leads to."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        schema = pointed(top, schema["$ref"]) if isinstance(schema["$ref"], str) else True
    return {}


def _kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types if isinstance(types, list) else _KINDS
    return frozenset("number" if each == "integer" else str(each) for each in types)


def _tags(schema: Mapping[str, Any], top: Any) -> dict[str, frozenset[str]]:
    """Returns the strings that each required property may be, where it can be nothing else."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    tags = dict[str, frozenset[str]]()
    for name in required:
        value = _followed(properties.get(name), top) if isinstance(name, str) else {}
        texts = [value["const"]] if "const" in value else value.get("enum")
        if isinstance(texts, list) and all(isinstance(each, str) for each in texts):
            tags[name] = frozenset(texts)
    return tags
