"""A JSON schema is read here before its grammar is compiled: what the grammar could not keep exactly is refused.

The compiler (llguidance) refuses the keywords of JSON Schema that it does not know how to keep, such as `not`. It
ignores every word that JSON Schema does not have, and words that the draft of `$schema` lacks. This module refuses
those words by name. A few others let wrong values through: `json_patterns` and `json_numbers` write them so that none
does:

    {"type": "string", "format": "date"}  ─▶  {"type": "string", "pattern": "^…$"}, which has no 30 February
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urljoin

from service.errors import UnsupportedField
from service.text.grammars.json_constants import require_kept
from service.text.grammars.json_extent import Extent
from service.text.grammars.json_numbers import require_exact_multiples, with_bounds
from service.text.grammars.json_patterns import followed_pattern, with_patterns

MOST_LEVELS: Final = 64
_SCHEMA: Final = frozenset({"additionalItems", "additionalProperties", "items"})
_SCHEMAS: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED_SCHEMAS: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_CONSTANTS: Final = frozenset({"const", "enum"})
_VALUES: Final = frozenset(
    (
        "$anchor", "$id", "$ref", "$schema", "exclusiveMaximum", "exclusiveMinimum", "format", "id", "maxItems",
        "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
        "pattern", "required", "type",
    )
)  # fmt: skip
KEPT: Final = _SCHEMA | _SCHEMAS | _NAMED_SCHEMAS | _CONSTANTS | _VALUES
NOTES: Final = frozenset(
    (
        "$comment", "contentEncoding", "contentMediaType", "default", "deprecated", "description", "discriminator",
        "example", "examples", "readOnly", "title", "writeOnly",
    )
)  # fmt: skip
_CONTENT: Final = frozenset({"contentEncoding", "contentMediaType"})
_WITHOUT_EFFECT: Final[Mapping[str, Any]] = {"uniqueItems": False, "nullable": False}
REFUSED_BY_COMPILER: Final = frozenset(
    (
        "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "contains", "contentSchema",
        "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not",
        "nullable", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    )
)  # fmt: skip
_DRAFTS: Final = frozenset(
    f"json-schema.org/{name}schema"
    for name in ("", "draft-04/", "draft-06/", "draft-07/", "draft/2019-09/", "draft/2020-12/")
)
_LACKS: Final[Mapping[str, frozenset[str]]] = {
    "json-schema.org/draft-04/schema": frozenset({"const", "prefixItems"}),
    "json-schema.org/draft-06/schema": frozenset({"prefixItems"}),
    "json-schema.org/draft-07/schema": frozenset({"prefixItems"}),
    "json-schema.org/draft/2019-09/schema": frozenset({"prefixItems"}),
}
"""Words that the compiler ignores where `$schema` names a draft, because the draft does."""
_ASSERTS: Final[Mapping[str, frozenset[str]]] = {"json-schema.org/draft-07/schema": _CONTENT}
"""Words that are notes in every other draft, so that the compiler ignores them."""


def followed(schema: Any, field: str, extent: Extent) -> dict[str, Any]:
    """Returns the schema as the compiler can keep it, without notes. Raises UnsupportedField, which names the place:
    `field` is where the request holds the schema; `extent` is what was read of the same grammar before. RecursionError
    where a constant is nested too deep."""
    kept = _followed(schema, field, 0, extent)
    if kept is False:
        raise UnsupportedField(
            f"`{field}` is false, which no answer fits: send a schema that some value fits", param=field
        )
    every = list(_schemas_of(kept, field))
    _require_own_names(every)
    for at, each in every:
        _require_kept_words(each, at, _draft_of(kept), is_top=each is kept)
        _require_sure_counts(each, at)
    require_exact_multiples((f"{at}.multipleOf", each["multipleOf"]) for at, each in every if "multipleOf" in each)
    return {} if kept is True else kept


def _followed(schema: Any, at: str, level: int, extent: Extent) -> Any:
    extent.add_schema(at)
    if level > MOST_LEVELS:
        raise UnsupportedField(f"`{at}` is nested more than {MOST_LEVELS} levels deep: make it flatter", param=at)
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise UnsupportedField(f"`{at}` must be a JSON schema: an object, true or false", param=at)
    kept: dict[str, Any] = {}
    for word, value in schema.items():
        if (word in NOTES and word not in _CONTENT) or (word in _WITHOUT_EFFECT and value is _WITHOUT_EFFECT[word]):
            continue
        kept[word] = _value(word, value, f"{at}.{word}", level + 1, extent)
    return with_patterns(with_bounds(kept, at), at, extent)


def _value(word: str, value: Any, at: str, level: int, extent: Extent) -> Any:
    if word in _SCHEMAS and isinstance(value, list) and value:
        return [_followed(each, f"{at}.{index}", level, extent) for index, each in enumerate(value)]
    if word in _SCHEMA:
        return _followed(value, at, level, extent)
    if word in _NAMED_SCHEMAS and isinstance(value, dict):
        named = ((name, _followed(each, f"{at}.{name}", level, extent)) for name, each in value.items())
        is_pattern = word == "patternProperties"
        return {followed_pattern(name, f"{at}.{name}", extent) if is_pattern else name: each for name, each in named}
    if word in _CONSTANTS:
        require_kept(value, at, extent)
        return value
    if word in _VALUES or word in _CONTENT:
        return value
    if word in REFUSED_BY_COMPILER:
        raise UnsupportedField(
            f"`{at}` cannot act: a grammar cannot keep `{word}`; remove it and check the answer", param=at
        )
    if word in _SCHEMAS | _NAMED_SCHEMAS:
        kind = "a list of at least one" if word in _SCHEMAS else "an object"
        raise UnsupportedField(f"`{at}` must be {kind} of JSON schemas: correct it", param=at)
    raise UnsupportedField(
        f"`{at}` is no word of JSON Schema that this server knows: remove it, or correct its spelling", param=at
    )


def _schemas_of(schema: Any, at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a followed schema and those in it, with their places."""
    if not isinstance(schema, dict):
        return
    yield at, schema
    for word, value in schema.items():
        inner: Iterable[tuple[Any, Any]] = ()
        if word in _SCHEMAS and isinstance(value, list):
            inner = enumerate(value)
        elif word in _NAMED_SCHEMAS:
            inner = value.items()
        elif word in _SCHEMA:
            yield from _schemas_of(value, f"{at}.{word}")
        for name, each in inner:
            yield from _schemas_of(each, f"{at}.{word}.{name}")


def _draft_of(schema: Any) -> str:
    draft = schema.get("$schema") if isinstance(schema, dict) else None
    return draft.partition("://")[2].rstrip("#") if isinstance(draft, str) else ""


def _require_kept_words(schema: Mapping[str, Any], at: str, draft: str, is_top: bool) -> None:
    """Raises UnsupportedField for words that the compiler ignores at this place."""
    for word in _ASSERTS.get(draft, frozenset()) & schema.keys():
        raise UnsupportedField(
            f"`{at}.{word}` cannot act: a grammar cannot keep it; remove it, or name a later draft, where it is a note",
            param=f"{at}.{word}",
        )
    for word in _LACKS.get(draft, frozenset()) & schema.keys():
        raise UnsupportedField(
            f"`{at}.{word}` is no word of the draft that `$schema` names: name a later draft, or none",
            param=f"{at}.{word}",
        )
    if "$schema" in schema and is_top and draft not in _DRAFTS:
        raise UnsupportedField(
            f"`{at}.$schema` names no draft that this server knows (4 to 2020-12): correct or remove it",
            param=f"{at}.$schema",
        )
    if "$schema" in schema and not is_top:
        raise UnsupportedField(f"`{at}.$schema` cannot act inside a schema: remove it", param=f"{at}.$schema")
    if "additionalItems" in schema and not isinstance(schema.get("items"), list):
        raise UnsupportedField(
            f"`{at}.additionalItems` cannot act without a list of `items`: beside `prefixItems`, write `items`",
            param=f"{at}.additionalItems",
        )
    reference = schema.get("$ref")
    if isinstance(reference, str) and not _is_of_schemas(reference.partition("#")[2]):
        raise UnsupportedField(
            f"`{at}.$ref` must point at a schema, such as `#/$defs/name`: correct it", param=f"{at}.$ref"
        )


def _is_of_schemas(fragment: str) -> bool:
    """Whether a JSON pointer leads from schema to schema, by the words that hold schemas; so does an anchor's name. A
    constant that looks like a schema was not read as one."""
    steps = fragment.split("/")[1:]
    while steps:
        word = steps.pop(0)
        if word in _NAMED_SCHEMAS or (word in _SCHEMAS and steps and steps[0].isdigit()):
            if not steps:
                return False
            steps.pop(0)
        elif word not in _SCHEMA:
            return False
    return True


def _require_own_names(schemas: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raises UnsupportedField for an `$id` that another schema has too, or that is the whole's address: the compiler
    would take one for the other."""
    base = str(schemas[0][1].get("$id", "")) if schemas else ""
    taken = {base, ""}
    for at, schema in schemas[1:]:
        for word in ("$id", "id"):
            name = schema.get(word)
            if not isinstance(name, str):
                continue
            if {name.rstrip("#"), urljoin(base, name).rstrip("#")} & taken:
                raise UnsupportedField(f"`{at}.{word}` names another schema as well: rename it", param=f"{at}.{word}")
            taken |= {name.rstrip("#"), urljoin(base, name).rstrip("#")}


def _require_sure_counts(schema: Mapping[str, Any], at: str) -> None:
    """Raises UnsupportedField for a number of properties that names which repeat could fail to reach: a grammar does
    not know which names it has written."""
    least, required = schema.get("minProperties", 0), schema.get("required", ())
    if isinstance(least, int) and least and isinstance(required, Iterable) and least > len(set(map(str, required))) + 1:
        raise UnsupportedField(
            f"`{at}.minProperties` cannot act above the number of required properties plus one: name the others in "
            "`required`",
            param=f"{at}.minProperties",
        )
