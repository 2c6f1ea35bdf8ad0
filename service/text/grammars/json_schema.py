"""A JSON schema is read here before its grammar is compiled: what the grammar could not keep exactly is refused.

The compiler (llguidance) refuses the keywords of JSON Schema that it does not know how to keep, such as `not`. It
ignores every word that JSON Schema does not have, and words that the draft of `$schema` lacks. This module refuses all
of them by their place. A few others let wrong values through: `json_values` writes them so that none does:

    {"type": "string", "format": "date"}  ─▶  {"type": "string", "pattern": "^…$"}, which has no 30 February

A schema is read beside all other requests, so an `Extent` bounds what it may hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urljoin

from service.errors import UnsupportedField
from service.text.grammars.json_values import (
    Extent,
    followed_pattern,
    require_exact_multiples,
    require_kept,
    with_bounds,
    with_patterns,
)
from service.text.grammars.unions import with_plain_unions

MOST_LEVELS: Final = 64
_LONGEST_ADDRESS: Final = 1024
_SCHEMA: Final = frozenset({"additionalItems", "additionalProperties", "items"})
LISTED_SCHEMAS: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
NAMED_SCHEMAS: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_CONSTANTS: Final = frozenset({"const", "enum"})
_VALUES: Final = frozenset(
    (
        "$anchor", "$id", "$ref", "$schema", "exclusiveMaximum", "exclusiveMinimum", "format", "id", "maxItems",
        "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
        "pattern", "required", "type",
    )
)  # fmt: skip
KEPT: Final = _SCHEMA | LISTED_SCHEMAS | NAMED_SCHEMAS | _CONSTANTS | _VALUES
NOTES: Final = frozenset(
    (
        "$comment", "contentEncoding", "contentMediaType", "default", "deprecated", "description", "discriminator",
        "example", "examples", "readOnly", "title", "writeOnly",
    )
)  # fmt: skip
_CONTENT: Final = frozenset({"contentEncoding", "contentMediaType"})
_WITHOUT_EFFECT: Final[Mapping[str, Any]] = {"uniqueItems": False, "nullable": False}
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


def followed(schema: Any, place: str, extent: Extent) -> dict[str, Any]:
    """Returns the schema as the compiler can keep it, without notes. Raises UnsupportedField, which names the place:
    `place` is where the request holds the schema; `extent` is what was read of the same grammar before. RecursionError
    where a constant is nested too deep."""
    top = schema if isinstance(schema, dict) else {}
    base = str(top.get("$id", ""))
    _require_short(base, f"{place}.$id")
    reader = _Reader(extent, _draft_of(top), base)
    kept = reader.read(schema, place)
    if kept is False:
        raise UnsupportedField(
            f"`{place}` is false, which no answer fits: send a schema that some value fits", param=place
        )
    require_exact_multiples(reader.multiples)
    if kept is True:
        return {}
    return kept if reader.taken or reader.enters_options else dict(with_plain_unions(kept, kept))


@dataclass(slots=True)
class _Reader:
    """Reads one schema and those in it, from outside to inside. `taken` are the addresses of those that were read;
    `enters_options`: a reference leads to an option of a `oneOf`."""

    extent: Extent
    draft: str
    base: str
    taken: set[str] = field(default_factory=set)
    enters_options: bool = False
    multiples: list[tuple[str, Any]] = field(default_factory=list)

    def read(self, schema: Any, at: str, level: int = 0) -> Any:
        self.extent.add_schema(at)
        if level > MOST_LEVELS:
            raise UnsupportedField(f"`{at}` is nested more than {MOST_LEVELS} levels deep: make it flatter", param=at)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UnsupportedField(f"`{at}` must be a JSON schema: an object, true or false", param=at)
        self._require_own_name(schema, at, is_top=level == 0)
        _require_acts(schema, at, self.draft, is_top=level == 0)
        self.enters_options |= "/oneOf/" in str(schema.get("$ref"))
        if "multipleOf" in schema:
            self.multiples.append((f"{at}.multipleOf", schema["multipleOf"]))
        kept: dict[str, Any] = {}
        for word, value in schema.items():
            if (word in NOTES and word not in _CONTENT) or (word in _WITHOUT_EFFECT and value is _WITHOUT_EFFECT[word]):
                continue
            kept[word] = self._value(word, value, f"{at}.{word}", level + 1)
        return with_patterns(with_bounds(kept, at), at, self.extent)

    def _value(self, word: str, value: Any, at: str, level: int) -> Any:
        if word in LISTED_SCHEMAS and isinstance(value, list) and value:
            return [self.read(each, f"{at}.{index}", level) for index, each in enumerate(value)]
        if word in _SCHEMA:
            return self.read(value, at, level)
        if word in NAMED_SCHEMAS and isinstance(value, dict):
            named = ((name, self.read(each, f"{at}.{name}", level)) for name, each in value.items())
            is_pattern = word == "patternProperties"
            return {
                followed_pattern(name, f"{at}.{name}", self.extent) if is_pattern else name: each
                for name, each in named
            }
        if word in LISTED_SCHEMAS | NAMED_SCHEMAS:
            kind = "a list of at least one" if word in LISTED_SCHEMAS else "an object"
            raise UnsupportedField(f"`{at}` must be {kind} of JSON schemas: correct it", param=at)
        if word not in KEPT | _CONTENT:
            raise UnsupportedField(
                f"`{at}` cannot act: a grammar cannot keep this word; correct its spelling, or remove it and check the "
                "answer",
                param=at,
            )
        if word in _CONSTANTS:
            for each in value if word == "enum" and isinstance(value, list) else [value]:
                require_kept(each, at, self.extent)
        for _ in value if word == "required" and isinstance(value, list) else ():
            self.extent.add_constant(at)
        return value

    def _require_own_name(self, schema: Mapping[str, Any], at: str, is_top: bool) -> None:
        """Raises UnsupportedField for an `$id` that another schema has too, or that is the whole's address: the
        compiler would take one for the other."""
        for word in () if is_top else ("$id", "id"):
            name = schema.get(word)
            if not isinstance(name, str):
                continue
            _require_short(name, f"{at}.{word}")
            addresses = {name.rstrip("#"), urljoin(self.base, name).rstrip("#")}
            if not addresses.isdisjoint(self.taken) or addresses & {self.base, ""}:
                raise UnsupportedField(f"`{at}.{word}` names another schema as well: rename it", param=f"{at}.{word}")
            self.taken |= addresses


def _require_short(address: str, at: str) -> None:
    """Raises UnsupportedField for an address that takes long to join with others."""
    if len(address) > _LONGEST_ADDRESS:
        raise UnsupportedField(
            f"`{at}` has more than {_LONGEST_ADDRESS} characters: give the schema a shorter address", param=at
        )


def _draft_of(schema: Mapping[str, Any]) -> str:
    draft = schema.get("$schema")
    return draft.partition("://")[2].rstrip("#") if isinstance(draft, str) else ""


def _require_acts(schema: Mapping[str, Any], at: str, draft: str, is_top: bool) -> None:
    """Raises UnsupportedField for words that the compiler ignores at this place."""
    refusals: dict[str, str] = {}
    for word in _ASSERTS.get(draft, frozenset()):
        refusals[word] = "cannot act: a grammar cannot keep it; remove it, or name a later draft, where it is a note"
    for word in _LACKS.get(draft, frozenset()):
        refusals[word] = "is no word of the draft that `$schema` names: name a later draft, or none"
    if not is_top:
        refusals["$schema"] = "cannot act inside a schema: remove it"
    elif draft not in _DRAFTS:
        refusals["$schema"] = "names no draft that this server knows (4 to 2020-12): correct or remove it"
    if not isinstance(schema.get("items"), list):
        refusals["additionalItems"] = "cannot act without a list of `items`: beside `prefixItems`, write `items`"
    reference = schema.get("$ref")
    if isinstance(reference, str) and not _is_of_schemas(reference.partition("#")[2]):
        refusals["$ref"] = "must point at a schema, such as `#/$defs/name`: correct it"
    if not _is_sure_count(schema):
        refusals["minProperties"] = (
            "cannot act above the number of required properties plus one: name the others in `required`"
        )
    for word, why in refusals.items():
        if word in schema:
            raise UnsupportedField(f"`{at}.{word}` {why}", param=f"{at}.{word}")


def _is_of_schemas(fragment: str) -> bool:
    """Whether a JSON pointer leads from schema to schema, by the words that hold schemas; so does an anchor's name. A
    constant that looks like a schema was not read as one."""
    steps = fragment.split("/")[:0:-1]
    while steps:
        word = steps.pop()
        if word in NAMED_SCHEMAS or (word in LISTED_SCHEMAS and steps and steps[-1].isdigit()):
            if not steps:
                return False
            steps.pop()
        elif word not in _SCHEMA:
            return False
    return True


def _is_sure_count(schema: Mapping[str, Any]) -> bool:
    """Whether names that repeat can reach the number of properties: a grammar does not know which names it has
    written."""
    least, required = schema.get("minProperties", 0), schema.get("required", ())
    return not (isinstance(least, int) and least and isinstance(required, Iterable)) or (
        least <= len(set(map(str, required))) + 1
    )
