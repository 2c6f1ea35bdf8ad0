"""Unions of a JSON schema: options of `oneOf` that exclude each other are those of `anyOf`, which the compiler keeps.

The compiler (llguidance) sees for itself that a number is no string. It does not see what discriminated unions of
Pydantic and others say: the options are objects, and each has its own value of one required property.

    {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}     Cat.kind is "cat", Dog.kind is "dog"
        ─▶ {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote

_KINDS: Final = frozenset({"null", "boolean", "number", "string", "array", "object"})
_MOST_REFERENCES: Final = 16
"""From one schema to the next, until a schema without a reference."""


def with_plain_unions(schema: Any, top: Any) -> Any:
    """Returns the schema with `anyOf` for each `oneOf` whose options exclude each other. `top` is the whole schema, in
    which `$ref` of a JSON pointer point."""
    return _Unions(References(top)).written(schema)


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


class References:
    """The references of one whole schema, each looked up once."""

    def __init__(self, top: Any) -> None:
        self._top = top
        self._known: dict[str, Any] = {}

    def target(self, schema: Any) -> Any:
        """Returns the schema that a reference leads to; another as it is; true where too many lead to the next."""
        for _ in range(_MOST_REFERENCES):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            reference = schema["$ref"]
            if reference not in self._known:
                self._known[reference] = pointed(self._top, reference)
            schema = self._known[reference]
        return True


class _Unions:
    """Writes the unions of one whole schema. Each object is looked into once, and each set of objects compared once,
    however many options lead there."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._tags: dict[int, Mapping[str, frozenset[str]]] = {}
        self._differing: dict[frozenset[int], bool] = {}

    def written(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.written(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        kept = {word: value if word in ("const", "enum") else self.written(value) for word, value in schema.items()}
        options = kept.get("oneOf")
        if isinstance(options, list) and "anyOf" not in kept and self._exclude_each_other(schema["oneOf"]):
            kept["anyOf"] = kept.pop("oneOf")
        return kept

    def _exclude_each_other(self, options: Sequence[Any]) -> bool:
        """Whether no value fits two of the options, as far as types and the strings of required properties tell."""
        found = [self._followed(each) for each in options]
        objects = [each for each in found if each.get("type") == "object"]
        kinds = chain.from_iterable(_kinds(each) for each in found if each.get("type") != "object")
        if not _differ([*kinds, *["object"][: len(objects)]]):
            return False
        ids = frozenset(map(id, objects))
        if len(ids) < len(objects):
            return False
        if ids not in self._differing:
            self._differing[ids] = self._are_tagged(objects)
        return self._differing[ids]

    def _are_tagged(self, objects: Sequence[Mapping[str, Any]]) -> bool:
        """Whether each object has strings of its own for one required property, or there is one object at most."""
        tags = [self._tags_of(each) for each in objects]
        shared = set(tags[0]).intersection(*tags[1:]) if tags else set[str]()
        return len(objects) < 2 or any(_differ(chain.from_iterable(each[name] for each in tags)) for name in shared)

    def _followed(self, schema: Any) -> Mapping[str, Any]:
        """Returns a schema that allows all that this one does: where it is a reference, the one that it leads to."""
        target = self._references.target(schema)
        return target if isinstance(target, dict) and "$ref" not in target else {}

    def _tags_of(self, schema: Mapping[str, Any]) -> Mapping[str, frozenset[str]]:
        """Returns the strings that each required property may be, where it can be nothing else."""
        if id(schema) not in self._tags:
            self._tags[id(schema)] = dict(self._read_tags(schema))
        return self._tags[id(schema)]

    def _read_tags(self, schema: Mapping[str, Any]) -> Iterator[tuple[str, frozenset[str]]]:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not isinstance(required, list):
            return
        for name in dict.fromkeys(each for each in required if isinstance(each, str)):
            value = self._followed(properties.get(name))
            texts = [value["const"]] if "const" in value else value.get("enum")
            if isinstance(texts, list) and all(isinstance(each, str) for each in texts):
                yield name, frozenset(texts)


def _differ(values: Iterable[str]) -> bool:
    found = list(values)
    return len(set(found)) == len(found)


def _kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types if isinstance(types, list) else _KINDS
    return frozenset("number" if each == "integer" else str(each) for each in types)
