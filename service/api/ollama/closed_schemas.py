"""Ollama's grammars write no property that a schema does not name. JSON Schema allows any other one where
`additionalProperties` is absent, and a small model then goes on with properties of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

LISTS: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
NAMED: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
ONE: Final = frozenset({"additionalProperties", "items"})
OPEN: Final = frozenset({"$ref", "additionalProperties", "allOf", "anyOf", "oneOf", "patternProperties"})
"""Words beside `properties` that say more of an object's properties: such an object stays as it is."""


def closed(schema: Any) -> Any:
    """Returns the schema with `additionalProperties` false at every object that names its properties and says nothing
    of others. A schema that joins several by `allOf` stays as it is: each part would refuse what another part names."""
    return schema if _joins(schema) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    kept = {word: _value(word, value) for word, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.keys() & OPEN:
        kept["additionalProperties"] = False
    return kept


def _value(word: str, value: Any) -> Any:
    if word in LISTS and isinstance(value, list):
        return [_closed(each) for each in value]
    if word in NAMED and isinstance(value, dict):
        return {name: _closed(each) for name, each in value.items()}
    return _closed(value) if word in ONE else value


def _joins(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    parts = schema.get("allOf")
    return (isinstance(parts, list) and len(parts) > 1) or any(map(_joins, _schemas_in(schema)))


def _schemas_in(schema: dict[str, Any]) -> Iterator[Any]:
    for word, value in schema.items():
        if word in LISTS and isinstance(value, list):
            yield from value
        elif word in NAMED and isinstance(value, dict):
            yield from value.values()
        elif word in ONE:
            yield value
