"""Kinds are what a schema's values can be in JSON: `{"anyOf": [{"type": "string"}, {"const": null}]}` are string, null.

A form of calls that writes texts without quotes needs the kinds to tell a text from a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from service.text.grammars.json_schema import NOTES
from service.text.grammars.unions import References

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


class Kinds:
    """The kinds of the schemas in one whole schema `top`, in which `$ref` point. Each schema is looked into once a
    level, however many references lead there: the kinds of a schema depend on no other that was asked for before."""

    def __init__(self, top: Any) -> None:
        self._references = References(top)
        self._known: dict[tuple[int, int], frozenset[str]] = {}

    def target(self, schema: Any) -> Any:
        """Returns the schema that a reference leads to; another as it is."""
        return self._references.target(schema)

    def of(self, schema: Any, level: int = 0) -> frozenset[str]:
        """Returns the kinds of a schema's values, all where nothing tells. The schema must be a part of `top`."""
        schema = self._references.target(schema)
        if not isinstance(schema, dict) or level > _MOST_LEVELS:
            return ALL
        unions = [each for each in (schema.get("anyOf"), schema.get("oneOf")) if isinstance(each, list)]
        key = (id(schema), level if unions else 0)
        if key not in self._known:
            kinds = _own_kinds(schema)
            for options in unions:
                kinds &= frozenset[str]().union(*(self.of(each, level + 1) for each in options))
            self._known[key] = kinds
        return self._known[key]

    def is_tagged_json(self, schema: Any) -> bool:
        """Whether a value between two tags is JSON; else it is a text as it stands, or null."""
        return not is_free(schema) and self.of(schema) not in (TEXT, TEXT_OR_NULL)


def _own_kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    """Returns the kinds that a schema's types and constants leave."""
    types, kinds = schema.get("type"), ALL
    if isinstance(types, str | list):
        types = [types] if isinstance(types, str) else types
        kinds &= {"number" if each == "integer" else str(each) for each in types}
    constants = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(constants, list):
        kinds &= {kind_of(each) for each in constants}
    return kinds


def is_free(schema: Any) -> bool:
    """Whether a schema allows every value."""
    return schema is True or (isinstance(schema, dict) and not schema.keys() - NOTES)


def schema_of(schema: Any, name: str) -> Any:
    """Returns the schema of the argument of this name; one of texts where nothing tells."""
    if not isinstance(schema, dict):
        return _TEXTS
    named, other = schema.get("properties"), schema.get("additionalProperties")
    known = named if isinstance(named, dict) else {}
    return known.get(name, other if isinstance(other, dict) else _TEXTS)
