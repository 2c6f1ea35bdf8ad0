"""A JSON schema is read here before its grammar is compiled: what the grammar could not keep exactly is refused.

The compiler (llguidance) refuses the keywords of JSON Schema that it does not know how to keep, such as `not`. It
ignores every word that JSON Schema does not have, and a few formats let wrong values through. This module refuses those
words by name, and writes those formats as patterns:

    {"type": "string", "format": "date"}  ─▶  {"type": "string", "pattern": "^…$"}, which has no 30 February
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from service.errors import UnsupportedField

MOST_LEVELS: Final = 64
_SCHEMA: Final = frozenset({"additionalItems", "additionalProperties", "items"})
_SCHEMAS: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED_SCHEMAS: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_VALUES: Final = frozenset(
    (
        "$anchor", "$id", "$ref", "$schema", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "id",
        "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum",
        "multipleOf", "pattern", "required", "type",
    )
)  # fmt: skip
_NOTES: Final = frozenset(
    (
        "$comment", "contentEncoding", "contentMediaType", "default", "deprecated", "description", "discriminator",
        "example", "examples", "readOnly", "title", "writeOnly",
    )
)  # fmt: skip
_WITHOUT_EFFECT: Final[Mapping[str, Any]] = {"uniqueItems": False, "nullable": False}
_REFUSED_BY_COMPILER: Final = frozenset(
    (
        "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "contains", "contentSchema",
        "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not",
        "nullable", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    )
)  # fmt: skip

_DAY: Final = (
    r"(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
    r"|[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8])))"
)
_HOUR: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR})"
_LABEL: Final = r"[a-zA-Z0-9]{1,16}(?:-[a-zA-Z0-9]{1,15}){0,2}"
_FORMATS: Final[Mapping[str, str]] = {
    "date": f"^{_DAY}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DAY}T{_TIME}$",
    "hostname": rf"^{_LABEL}(?:\.{_LABEL}){{0,3}}$",
}
"""Formats whose own grammars let wrong values through: 30 February, leap seconds at any minute, names of hosts that are
too long or no valid Punycode. Each pattern allows a part of the right values only."""


def followed(schema: Any, field: str) -> dict[str, Any]:
    """Returns the schema as the compiler can keep it, without notes. Raises UnsupportedField, which names the place:
    `field` is where the request holds the schema."""
    found = _followed(schema, field, 0)
    if isinstance(found, dict):
        return found
    if found is True:
        return {}
    raise UnsupportedField(f"`{field}` is false, which no answer fits: send a schema that some value fits", param=field)


def _followed(schema: Any, at: str, level: int) -> Any:
    if level > MOST_LEVELS:
        raise UnsupportedField(f"`{at}` is nested more than {MOST_LEVELS} levels deep: make it flatter", param=at)
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise UnsupportedField(f"`{at}` must be a JSON schema: an object, true or false", param=at)
    kept: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _NOTES or (word in _WITHOUT_EFFECT and value is _WITHOUT_EFFECT[word]):
            continue
        kept[word] = _value(word, value, f"{at}.{word}", level + 1)
    _require_sure_counts(kept, at)
    return _with_patterns(kept)


def _value(word: str, value: Any, at: str, level: int) -> Any:
    if word in _SCHEMAS and isinstance(value, list):
        return [_followed(each, f"{at}.{index}", level) for index, each in enumerate(value)]
    if word in _SCHEMA:
        return _followed(value, at, level)
    if word in _NAMED_SCHEMAS and isinstance(value, dict):
        return {name: _followed(each, f"{at}.{name}", level) for name, each in value.items()}
    if word in _VALUES:
        return value
    if word in _REFUSED_BY_COMPILER:
        raise UnsupportedField(
            f"`{at}` cannot act: a grammar cannot keep `{word}`; remove it and check the answer", param=at
        )
    raise UnsupportedField(
        f"`{at}` is no word of JSON Schema that this server knows: remove it, or correct its spelling", param=at
    )


def _require_sure_counts(schema: Mapping[str, Any], at: str) -> None:
    """Raises UnsupportedField for a number of properties that names which repeat could fail to reach: a grammar does
    not know which names it has written."""
    least, required = schema.get("minProperties", 0), schema.get("required", ())
    if isinstance(least, int) and isinstance(required, Iterable) and least > len(set(map(str, required))) + 1:
        raise UnsupportedField(
            f"`{at}.minProperties` cannot act above the number of required properties plus one: name the others in "
            "`required`",
            param=f"{at}.minProperties",
        )


def _with_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema with a pattern for a format of `_FORMATS`."""
    pattern = _FORMATS.get(schema["format"]) if isinstance(schema.get("format"), str) else None
    if pattern is None:
        return schema
    rest = {word: value for word, value in schema.items() if word != "format"}
    if "pattern" not in rest:
        return {**rest, "pattern": pattern}
    return {**rest, "allOf": [*rest.get("allOf", ()), {"pattern": pattern}]}
