"""A JSON schema of a client is kept or refused: every word of it acts, or is refused by its name; what acts lets no
wrong value through."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from service.errors import InvalidRequest, UnsupportedField
from service.text.grammars import Grammar, unions
from service.text.grammars.json_schema import KEPT, MOST_LEVELS, NOTES, followed
from service.text.grammars.json_values import Extent
from service.text.grammars.matching import VocabularyGrammars
from service.text.grammars.trial import tried
from tests.grammars import FIELD, fits

DRAFTS = {
    "none": "",
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema#",
    "7": "http://json-schema.org/draft-07/schema",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}
Schema = dict[str, Any]


def allowed(schema: Schema | str | bool, *values: Any) -> list[bool]:
    """Which of the values a schema's grammar allows, as Python writes them; bytes as they are."""
    grammar = Grammar.of_json_schema(schema, FIELD)
    texts = (value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False) for value in values)
    return [fits(grammar, text) for text in texts]


def refused(schema: Any) -> tuple[str, str]:
    with pytest.raises(UnsupportedField) as caught:
        Grammar.of_json_schema(schema, FIELD)
    assert caught.value.message.startswith(f"`{caught.value.param}`"), "it names the place"
    return caught.value.param or "", caught.value.message


# -- words ------------------------------------------------------------------------------------------------------------

REFUSED: dict[str, Schema] = {
    # words that JSON Schema lacks
    "typ": {"typ": "string"},
    "optional": {"optional": True},
    "x-guidance": {"x-guidance": {"lenient": True}},
    "x-order": {"x-order": 1},
    "propertyOrdering": {"propertyOrdering": ["a"]},
    "Type": {"Type": "string"},
    # words that the compiler ignores there
    "const": {"const": 1, "$schema": DRAFTS["4"]},
    "prefixItems": {"prefixItems": [{}], "$schema": DRAFTS["2019-09"]},
    "additionalItems": {"prefixItems": [{}], "additionalItems": False},
    "$schema": {"items": {"$schema": DRAFTS["7"]}},
    "contentEncoding": {"contentEncoding": "base64", "$schema": DRAFTS["7"]},
    "contentMediaType": {"contentMediaType": "application/json", "$schema": DRAFTS["7"]},
    # words with something else than they need
    "allOf": {"allOf": {"type": "string"}},
    "oneOf": {"oneOf": []},
    "anyOf": {"anyOf": "string"},
    "prefixItems.0": {"prefixItems": ["string"]},
    "properties": {"properties": ["a"]},
    "$defs": {"$defs": 1},
    "format": {"type": ["null", "string"], "format": "uri-reference"},
    "items": {"items": "string"},
    "additionalProperties": {"additionalProperties": "string"},
}


def test_a_word_that_cannot_act_is_refused_by_its_place() -> None:
    for word, schema in REFUSED.items():
        place = f"items.{word}" if word == "$schema" else word
        assert refused(schema)[0] == f"{FIELD}.{place}"
        inside = {"properties": {"a": {"anyOf": [{"type": "null"}, {"items": schema}]}}}
        if "$schema" not in schema:
            assert refused(inside)[0] == f"{FIELD}.properties.a.anyOf.1.items.{place}"


ACTS: dict[str, tuple[Schema, Any]] = {
    "type": ({"type": "null"}, 1),
    "types": ({"type": ["null", "string"]}, 1),
    "const": ({"const": 1}, 2),
    "enum": ({"enum": [1, "a"]}, 2),
    "minimum": ({"minimum": 3}, 2),
    "maximum": ({"maximum": 3}, 4),
    "exclusiveMinimum": ({"exclusiveMinimum": 3}, 3),
    "exclusiveMaximum": ({"exclusiveMaximum": 3}, 3),
    "exclusiveMinimum of draft 4": ({"minimum": 3, "exclusiveMinimum": True}, 3),
    "exclusiveMaximum of draft 4": ({"maximum": 3, "exclusiveMaximum": True}, 3),
    "multipleOf": ({"multipleOf": 3}, 4),
    "minLength": ({"minLength": 2}, "a"),
    "maxLength": ({"maxLength": 1}, "ab"),
    "pattern": ({"pattern": "^a"}, "b"),
    "format": ({"format": "ipv4"}, "b"),
    "minItems": ({"minItems": 1}, []),
    "maxItems": ({"maxItems": 0}, [1]),
    "items": ({"items": {"type": "null"}}, [1]),
    "items, a list": ({"items": [{"type": "null"}]}, [1]),
    "additionalItems": ({"items": [{}], "additionalItems": False}, [1, 2]),
    "prefixItems": ({"prefixItems": [{"type": "null"}]}, [1]),
    "required": ({"required": ["a"]}, {}),
    "properties": ({"properties": {"a": {"type": "null"}}}, {"a": 1}),
    "additionalProperties": ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}),
    "patternProperties": ({"patternProperties": {"^a": {"type": "null"}}}, {"ab": 1}),
    "minProperties": ({"minProperties": 1}, {}),
    "maxProperties": ({"maxProperties": 0}, {"a": 1}),
    "allOf": ({"allOf": [{"type": "number"}, {"type": "integer"}]}, 1.5),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, 1),
    "oneOf": ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, 1),
    "$ref": ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "null"}}}, {"a": 1}),
    "$ref of draft 4": ({"allOf": [{"$ref": "#/definitions/b"}], "definitions": {"b": {"type": "null"}}}, 1),
    "$ref to itself": ({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, {"a": {"b": 1}}),
    "$anchor": ({"allOf": [{"$ref": "#b"}], "$defs": {"c": {"$anchor": "b", "type": "null"}}}, 1),
    "$id": ({"allOf": [{"$ref": "urn:b"}], "$defs": {"c": {"$id": "urn:b", "type": "null"}}}, 1),
    "id": ({"allOf": [{"$ref": "urn:b"}], "definitions": {"c": {"id": "urn:b", "type": "null"}}}, 1),
}
"""By word: a schema, and a value that does not fit it."""


def test_no_word_is_ignored() -> None:
    """In every draft: it is kept, or refused by this server or by the compiler."""
    offenders = list[tuple[str, str]]()
    for (word, (schema, wrong)), draft in product(ACTS.items(), DRAFTS):
        named = {"$schema": DRAFTS[draft], **schema} if draft != "none" else schema
        try:
            is_kept = allowed(named, wrong) == [False]
        except (UnsupportedField, ValueError):
            is_kept = draft != "none" or word == "id"
        offenders += [] if is_kept else [(word, draft)]
    assert not offenders


def test_notes_are_left_out() -> None:
    notes = {
        "title": "A",
        "description": "b",
        "default": {"typ": 1},
        "examples": [1],
        "example": 1,
        "$comment": "c",
        "deprecated": True,
        "readOnly": True,
        "writeOnly": False,
        "discriminator": {"propertyName": "a"},
        "uniqueItems": False,
        "nullable": False,
    }
    assert followed({"type": "array", **notes, "items": {"type": "string", **notes}}, FIELD, Extent()) == {
        "type": "array",
        "items": {"type": "string"},
    }
    assert followed(notes, FIELD, Extent()) == {}
    named = {name: {"type": "null"} for name in notes}
    assert followed({"properties": named}, FIELD, Extent()) == {"properties": named}, "a property may have any name"


def test_notes_of_most_drafts() -> None:
    content = {"contentEncoding": "base64", "contentMediaType": "application/json"}
    assert allowed({**content, "$schema": DRAFTS["2020-12"]}, "a") == allowed(content, "a") == [True]


def test_what_is_kept_is_not_changed() -> None:
    schema = {"type": "object", "properties": {"typ": {"enum": [{"typ": 1}]}}, "required": ["typ"]}
    before = json.dumps(schema)
    assert followed(schema, FIELD, Extent()) == schema and json.dumps(schema) == before


# -- whole schemas ----------------------------------------------------------------------------------------------------


def test_booleans() -> None:
    assert allowed(True, 1, {"a": []}) == allowed({}, 1, {"a": []}) == [True, True]
    assert refused(False)[0] == FIELD
    assert allowed({"properties": {"a": False, "b": True}}, {"a": 1}, {"b": 1}, {}) == [False, True, True]
    assert allowed({"items": False}, [], [1]) == [True, False]


def test_an_object_of_no_properties_and_a_very_long_text_are_schemas() -> None:
    """Tools without parameters and fields of files have them."""
    assert allowed({"type": "object", "properties": {}}, {}, {"a": 1}) == [True, True]
    assert allowed({"type": "object", "properties": {}, "additionalProperties": False}, {}, {"a": 1}) == [True, False]
    assert allowed({"type": "string", "maxLength": 100_000}, "a" * 99, 1) == [True, False]
    assert allowed({"type": "array", "maxItems": 0}, [], [1]) == [True, False]


def test_something_that_is_no_schema() -> None:
    for wrong in (1, None, ["a"]):
        assert refused(wrong)[0] == FIELD
        assert refused({"items": {"properties": {"a": wrong}}})[0].endswith("properties.a")


def test_a_schema_as_text() -> None:
    assert allowed('{"type": "integer"}', 1, "a") == [True, False]
    assert allowed("true", 1) == [True]
    assert refused("false")[0] == refused("1")[0] == FIELD
    for wrong in ("{", "", "{'a': 1}", "[" * 100_000, '{"const": ' + "1" * 5000 + "}"):
        with pytest.raises(InvalidRequest, match="JSON of a schema"):
            Grammar.of_json_schema(wrong, FIELD)


def test_nesting() -> None:
    def nested(levels: int) -> Schema:
        return {"type": "array", "items": nested(levels - 1)} if levels else {"type": "null"}

    assert allowed(nested(20), json.loads("[" * 20 + "null" + "]" * 20)) == [True]
    followed(nested(MOST_LEVELS), FIELD, Extent())
    assert "levels deep" in refused(nested(MOST_LEVELS + 1))[1]
    constant: Any = 1
    for _ in range(10_000):
        constant = [constant]
    with pytest.raises(InvalidRequest, match="nested too deep"):
        Grammar.of_json_schema({"const": constant}, FIELD)


def test_a_reference_must_point_at_a_schema() -> None:
    """What stands in a constant was not read as a schema: its words could be ignored."""
    for pointer in ("#/$defs/a/const", "#/enum/0", "#/$defs", "#/allOf", "#/required", "#/x/y", "#/properties/a/const"):
        schema = {"anyOf": [{"$ref": pointer}], "$defs": {"a": {"const": {"typ": 1}}}, "enum": [{"typ": 1}]}
        assert refused(schema)[0] == f"{FIELD}.anyOf.0.$ref"
    for pointer in ("#", "#/properties/const", "#/properties/enum/items", "#/$defs/a%20b", "#/allOf/0/items/1"):
        inner = {"const": {"const": 1}, "enum": {"items": {"const": 1}}}
        schema = {
            "properties": inner,
            "$defs": {"a b": {"const": 1}},
            "allOf": [{"items": [{"const": 2}, {"const": 1}]}],
        }
        assert allowed({**schema, "properties": {**inner, "z": {"$ref": pointer}}}, {"z": 2}) == [pointer == "#"]


def test_two_schemas_of_one_address_are_refused() -> None:
    """The compiler would take one for the other, and forget what the whole requires."""
    for outer, inner in (("", ""), ("", "#"), ("http://a.b/c", "http://a.b/c"), ("http://a.b/c", "c")):
        schema: Schema = {"type": "object", "properties": {"a": {"$id": inner}}, "required": ["a"]}
        assert refused({**schema, "$id": outer} if outer else schema)[0] == f"{FIELD}.properties.a.$id"
    twice = {"anyOf": [{"$id": "urn:a", "const": 1}, {"$id": "urn:a", "const": 2}]}
    assert refused(twice)[0] == f"{FIELD}.anyOf.1.$id"


def test_a_draft_that_nobody_knows_is_refused() -> None:
    for draft in ("http://json-schema.org/draft-03/schema#", "", "x", "https://example.com/mine"):
        assert refused({"$schema": draft, "type": "null"})[0] == f"{FIELD}.$schema"


def test_a_number_of_properties_that_repeated_names_could_miss() -> None:
    assert allowed({"minProperties": 1}, {}, {"a": 1}) == [False, True]
    assert allowed({"minProperties": 2, "required": ["a"]}, {"a": 1}, {"a": 1, "b": 2}) == [False, True]
    repeated = b'{"a": 1, "a": 2}'
    assert allowed({"minProperties": 2, "required": ["a"]}, repeated) == [False]
    assert allowed({"minProperties": 2, "required": ["a"], "patternProperties": {"^a": {}}}, repeated) == [False]
    for schema in (
        {"minProperties": 2},
        {"minProperties": 3, "required": ["a"]},
        {"minProperties": 3, "required": ["a", "a"]},
    ):
        assert refused(schema)[0] == f"{FIELD}.minProperties"
        assert refused({"anyOf": [{}, schema]})[0] == f"{FIELD}.anyOf.1.minProperties"
    with pytest.raises(ValueError, match="minProperties"):
        allowed({"minProperties": 2.0}, {"a": 1})


def test_a_taken_name_cannot_come_again_in_another_writing() -> None:
    taken: Schema = {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^b": {"type": "null"}}}
    schema = {**taken, "additionalProperties": {"type": "string"}}
    right = [b'{"a": 1, "c": "x"}', b'{"a": 1, "b": null, "a\\n": "x"}', '{"a": 1, "도시락": "x"}'.encode()]
    wrong = [b'{"a": 1, "\\u0061": "x"}', b'{"\\u0062": "x"}', b'{"c": "\\u0061"}', b'{"\\/": "x"}', b'{"a": "x"}']
    assert allowed(schema, *right, *wrong) == [True] * len(right) + [False] * len(wrong)


def test_texts_have_one_writing() -> None:
    for value in ('"', "\\", "/", "\b\f\n\r\t", "\u0080\u2028\u2029\ud7ff\ue000\uffff😀", "a'b", "{}", "도시락"):
        written = json.dumps(value, ensure_ascii=False).encode()
        escaped = b'"' + "".join(f"\\u{ord(each):04x}" for each in value).encode() + b'"'
        for schema in ({"type": "string"}, {"const": value}, {"enum": [value, 1]}, {"minLength": len(value)}):
            assert allowed(schema, written, escaped) == [True, False]
        assert allowed({"maxLength": len(value)}, value, value + "a") == [True, False]
        named = {"properties": {value: {"type": "null"}}, "required": [value]}
        assert allowed(named, {value: None}, {value: 1}, {}) == [True, False, False]


def test_keys_come_in_the_schemas_order_and_without_needless_blanks() -> None:
    """A model can think in the first, and cannot write blanks without an end."""
    number = {"type": "integer"}
    schema = {"type": "object", "properties": {"z": number, "a": number}, "required": ["a", "z"]}
    texts = (b'{"z": 1, "a": 2}', b'{"a": 2, "z": 1}', b'{"z": 1,  "a": 2}', b'{ "z": 1, "a": 2}', b'{"z": 1, "a": 2 }')
    assert allowed(schema, *texts) == [True, False, False, False, False]


def test_constants_with_control_characters_are_refused() -> None:
    """The compiler would leave the characters out."""
    for wrong in ("a\x01", "\x7f", ["\x00"], {"a": {"b": "\x1f"}}, {"\x0b": 1}):
        assert refused({"items": {"const": wrong}})[0] == f"{FIELD}.items.const"
        assert refused({"enum": [1, wrong]})[0] == f"{FIELD}.enum"
    assert allowed({"properties": {"\x01": {"type": "null"}}}, {"\x01": None}, {"": None}) == [True, True]


# -- unions -----------------------------------------------------------------------------------------------------------


def tagged(tag: Any, **more: Any) -> Schema:
    """As Pydantic writes a class of a discriminated union."""
    kind = tag if isinstance(tag, dict) else {"const": tag} if isinstance(tag, str) else {"enum": tag}
    return {"type": "object", "properties": {"kind": kind, **more}, "required": ["kind"]}


CAT, DOG = tagged("cat", lives={"type": "integer"}), tagged("dog", name={"type": "string"})
TO_CAT, TO_DOG = {"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}
NAMED = {"Cat": CAT, "Dog": DOG, "Cow": {"const": "cow"}, "Any": TO_CAT, "Ring": {"$ref": "#/$defs/Ring"}}
CATS = ({"kind": "cat", "lives": 9}, {"kind": "dog", "name": "Rex"}, {"kind": "dog", "name": 9}, {"kind": "cow"})
EXCLUDING: dict[str, tuple[list[Any], list[bool]]] = {
    "by reference": ([TO_CAT, TO_DOG], [True, True, False, False]),
    "by two references": ([{"$ref": "#/$defs/Any"}, TO_DOG], [True, True, False, False]),
    "of several strings": ([tagged(["dog", "cow"]), TO_CAT], [True, True, True, True]),
    "a property by reference": ([TO_CAT, tagged({"$ref": "#/$defs/Cow"})], [True, False, False, True]),
    "beside other types": ([TO_CAT, TO_DOG, {"type": ["null", "integer"]}], [True, True, False, False]),
}
OVERLAPPING: dict[str, list[Any]] = {
    "one string of both": [TO_CAT, tagged(["cat", "dog"])],
    "a property that both may leave out": [{**CAT, "required": []}, {**DOG, "required": []}],
    "a tag that may be anything": [TO_CAT, tagged({})],
    "numbers": [{"type": "integer"}, {"type": "number"}],
    "anything": [TO_CAT, True],
    "references without end": [TO_CAT, {"$ref": "#/$defs/Ring"}],
}


@pytest.mark.parametrize("union", EXCLUDING)
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_discriminated_union_is_kept(union: str, is_inside: bool) -> None:
    options, expected = EXCLUDING[union]
    discriminator = {"mapping": {"cat": "#/$defs/Cat"}, "propertyName": "kind"}
    schema: Schema = {"oneOf": options, "discriminator": discriminator}
    if is_inside:
        schema = {"type": "array", "items": schema}
    values = [[each] for each in CATS] if is_inside else CATS
    assert allowed({"$defs": NAMED, **schema}, *values) == expected


@pytest.mark.parametrize("union", OVERLAPPING)
def test_options_that_may_overlap_are_refused(union: str) -> None:
    with pytest.raises(ValueError, match="oneOf"):
        allowed({"$defs": NAMED, "oneOf": OVERLAPPING[union]}, 1)


def test_the_refusal_says_what_to_write() -> None:
    text = Grammar.of_json_schema({"$defs": NAMED, "oneOf": [TO_CAT, True]}, FIELD).text
    assert "write `anyOf`" in (tried(VocabularyGrammars.of_letters(), text) or "")


def test_a_tree_of_a_discriminated_union() -> None:
    branch = tagged("branch", child={"oneOf": [{"$ref": "#/$defs/Branch"}, {"$ref": "#/$defs/Leaf"}]})
    schema = {"$defs": {"Branch": branch, "Leaf": tagged("leaf")}, "$ref": "#/$defs/Branch"}
    tree = {"kind": "branch", "child": {"kind": "branch", "child": {"kind": "leaf"}}}
    assert allowed(schema, tree, {"kind": "branch", "child": {"kind": "twig"}}) == [True, False]


def test_a_reference_into_options_still_finds_them() -> None:
    """They stay where they are; so this union is refused."""
    schema = {"$defs": NAMED, "properties": {"a": {"oneOf": [TO_CAT, TO_DOG]}, "b": {"$ref": "#/properties/a/oneOf/0"}}}
    with pytest.raises(ValueError, match="oneOf"):
        allowed(schema, {})


def test_a_reference_is_looked_up_once_however_many_options_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = list[str]()

    def pointed(top: Any, reference: str) -> Any:
        looked_up.append(reference)
        return unions_pointed(top, reference)

    unions_pointed = unions.pointed
    monkeypatch.setattr(unions, "pointed", pointed)
    ring = {"type": "object", "properties": {"a": {"$ref": "#/$defs/B"}}, "required": ["a"] * 500}
    defs: Schema = {"A": ring, "C": tagged("c", a={"$ref": "#/$defs/B"}), "B": {"$ref": "#/$defs/B"}}
    pairs = [{"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/C"}]}] * 100
    Grammar.of_json_schema({"$defs": defs, "prefixItems": pairs, "oneOf": [{"$ref": "#/$defs/A"}] * 200}, FIELD)
    assert sorted(looked_up) == ["#/$defs/A", "#/$defs/B", "#/$defs/C"]


def test_as_many_values_as_the_documentation_says_are_kept() -> None:
    """The list of `enum` is none of them."""
    assert allowed({"enum": [*range(8192)]}, 8191, 8192) == [True, False]
    for schema in ({"enum": [*range(8193)]}, {"enum": [[*range(8192)]]}, {"const": [*range(8192)]}):
        assert "more than 8192 constant values" in refused(schema)[1]


def test_names_that_are_required_are_counted() -> None:
    assert "constant values" in refused({"required": ["a"] * 8193})[1]
    assert allowed({"required": ["a"] * 8192}, {"a": 1}, {}) == [True, False]


def test_an_address_that_takes_long_to_join_with_others_is_refused() -> None:
    for schema in ({"$id": "http://a/" + "a/" * 600}, {"items": {"$id": "a/" * 600}}):
        assert "shorter address" in refused(schema)[1]


# -- the documentation ------------------------------------------------------------------------------------------------

FORMATS = (
    "color date date-time duration email hostname idn-email idn-hostname ipv4 ipv6 iri iri-reference json-pointer "
    "regex relative-json-pointer time uri uri-reference uri-template uuid"
)


def documented(line: str) -> set[str]:
    text = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
    told = re.search(rf"^  - {line}: (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    assert told is not None, line
    return set(re.findall("`([^`]+)`", told[1]))


def is_kept_format(name: str) -> bool:
    try:
        return allowed({"format": name}, 1) == [True]
    except UnsupportedField as error:
        assert error.param == f"{FIELD}.format"
        return False


def test_a_format_of_other_types_than_strings_is_a_note() -> None:
    for schema, value in (({"type": "integer"}, 1), ({"type": ["number", "null"]}, 1.5)):
        assert allowed({**schema, "format": "int32"}, value, "a") == [True, False]
    for format in ("binary", "", 5, None, "unknown"):
        assert refused({"properties": {"a": {"format": format}}})[0] == f"{FIELD}.properties.a.format"


def test_the_documentation_names_every_word() -> None:
    assert documented("kept") == KEPT
    assert documented("notes, which change nothing") == NOTES
    for word in documented("refused"):
        for value in (True, {"type": "string"}, ["a"], 2):
            assert refused({"items": {word: value}})[0] == f"{FIELD}.items.{word}"
    assert documented("kept as `format`") == set(filter(is_kept_format, FORMATS.split()))


def test_every_word_has_a_test() -> None:
    named = {word.partition(" ")[0].strip(",") for word in ACTS}
    assert named | {"$defs", "definitions", "$schema"} == KEPT | {"types"}
