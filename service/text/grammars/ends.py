"""Whether a JSON schema has a value that ends: one that needs itself inside of itself has none, and its answer would go
on up to its limit.

    {"properties": {"next": {"$ref": "#"}}, "required": ["next"]}      needs itself without end
    {"properties": {"next": {"$ref": "#"}}}                            ends where `next` is left out

It knows schemas as `followed` returns them. It may take long, so it runs where a grammar is tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

_OTHER_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string"})


def require_end(text: str) -> None:
    """Raises ValueError for a grammar that is a JSON schema without a value that ends."""
    if '"$ref"' not in text or not text.startswith("{"):
        return
    for definition in json.loads(text)["grammars"]:
        schema = definition.get("json_schema")
        if schema is not None and not _Ends(schema).has_end():
            raise ValueError("no answer of it could end: it needs itself without end; make a part of it optional")


class _Ends:
    """What is known of a schema and those in it: those that surely have a value that ends. More become known in each
    round, until a round finds no more."""

    def __init__(self, schema: Any) -> None:
        self._top = schema
        self._known: set[int] = set()
        self._open = list(_nodes(schema))[::-1]  # what is inside of another comes first

    def has_end(self) -> bool:
        num_open = 0
        while num_open != len(self._open):
            num_open = len(self._open)
            self._open = [node for node in self._open if not self._learns(node)]
        return self._is_known(self._top)

    def _learns(self, schema: dict[str, Any]) -> bool:
        if self._ends(schema):
            self._known.add(id(schema))
        return id(schema) in self._known

    def _is_known(self, schema: Any) -> bool:
        return schema is True or (schema is not False and id(schema) in self._known)

    def _ends(self, schema: dict[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        if "$ref" in schema and not self._is_known(self._target(schema["$ref"])):
            return False
        if not all(map(self._is_known, schema.get("allOf", ()))):
            return False
        if not all(any(map(self._is_known, schema[word])) for word in ("anyOf", "oneOf") if word in schema):
            return False
        types = schema.get("type", ("null",))
        types = {types} if isinstance(types, str) else set(types)
        if types & _OTHER_TYPES:
            return True
        return ("object" in types and self._object_ends(schema)) or ("array" in types and self._array_ends(schema))

    def _object_ends(self, schema: dict[str, Any]) -> bool:
        named, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        patterns = list(schema.get("patternProperties", {}).values())
        needed = [named.get(name, [*patterns, other]) for name in schema.get("required", ())]
        return all(
            any(map(self._is_known, each)) if isinstance(each, list) else self._is_known(each) for each in needed
        )

    def _array_ends(self, schema: dict[str, Any]) -> bool:
        items = schema.get("items", True)
        first, rest = (items, schema.get("additionalItems", True)) if isinstance(items, list) else ([], items)
        first = schema.get("prefixItems", first)
        least = int(schema.get("minItems", 0))
        return all(map(self._is_known, first[:least])) and (least <= len(first) or self._is_known(rest))

    def _target(self, reference: str) -> Any:
        """The schema that a JSON pointer names; true for what is named otherwise, which is not looked up."""
        place, _, pointer = reference.partition("#")
        if place or (pointer and not pointer.startswith("/")):
            return True
        found = self._top
        for step in pointer.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError, TypeError):
                return True
        return found


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yields every object in a JSON value, those that are no schemas too: nothing refers to them."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _nodes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _nodes(each)
