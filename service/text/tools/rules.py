"""Rules are a grammar's parts for arguments that are no JSON object: what their schema allows, as the reader reads it
back. Texts stand as they are, up to what closes them; every other value is JSON.

    "<parameter=city>\\n" text0     text0[suffix="\\n</parameter>\\n"]: TEXT0     TEXT0 holds no tag of the form
    "<parameter=days>\\n" %json {"type": "integer"} "\\n</parameter>\\n"

Arguments come in the order of their properties, and only those that are named, where any is. What a form cannot keep is
refused by its place in the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from keyword import kwlist
from typing import Any, Final

from service.errors import UnsupportedField
from service.text.grammars.grammar import ANY, exactly, json_rule, literal, text_rule
from service.text.grammars.json_schema import NOTES
from service.text.grammars.json_values import Extent
from service.text.tools.form import ToolFormat
from service.text.tools.kinds import TEXT, TEXT_OR_NULL, Kinds, is_free, kind_of
from service.text.tools.writing import Style

_DEFINITIONS: Final = ("$schema", "$defs", "definitions")
_OBJECT: Final = frozenset({"type", "properties", "required", "additionalProperties", *_DEFINITIONS})
_CONSTANT: Final = frozenset({"type", "const", "enum"})
_TEXT: Final = frozenset({"type", "minLength", "maxLength"})
_NUMBER: Final = frozenset({"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_LIST: Final = frozenset({"type", "items", "minItems", "maxItems"})
_REFERENCE: Final = re.compile(r'"\$ref": "(?!#/(?:\$defs|definitions)/)')
_KEYS: Final[Mapping[Style, str]] = {
    Style.TAGS: "/[A-Za-z0-9_.-]+/",
    Style.PYTHON: f"/[A-Za-z_][A-Za-z0-9_]*/ & ~/{'|'.join(kwlist)}/",
    Style.GEMMA: "/[A-Za-z0-9_.-]+/",
}


class ArgumentRules:
    """The rules of one grammar. `lines` are those that the parts need that were returned."""

    def __init__(self, form: ToolFormat, marks: Mapping[str, int]) -> None:
        assert form.writing is not None
        self._form, self._writing, self._marks = form, form.writing, marks
        self._extent = Extent()
        self._kinds = Kinds(True)
        self._definitions: dict[str, Any] = {}
        self._refers_elsewhere = False
        self._known: dict[object, str] = {}
        """The rules that stand for more than one place: by id the schema's of this function, by tuple those of all."""
        self.lines: list[str] = []
        opening = self._writing.key_tags[0] if self._writing.style is Style.TAGS else ""
        self._stops = tuple(filter(None, (opening, self._writing.value_closing, self._writing.quote, form.closing)))
        """What would end a text before its end."""

    def of(self, function: str, schema: Any, place: str) -> str:
        """Returns the part for the arguments of a function. `place` is where the request holds it. Raises
        UnsupportedField, InvalidRequest."""
        if not self._writing.can_name(function, is_function=True):
            raise self._refused(f"{place}.name")
        place = f"{place}.parameters"
        json_rule(schema, place, Extent())  # what no grammar keeps is refused as everywhere
        self._kinds = Kinds(schema)
        top = schema if isinstance(schema, dict) else {}
        self._definitions = {word: top[word] for word in _DEFINITIONS if word in top}
        self._refers_elsewhere = bool(_REFERENCE.search(json.dumps(self._definitions)))
        self._known = {key: name for key, name in self._known.items() if isinstance(key, tuple)}
        return self._object(schema, place)

    def _object(self, schema: Any, place: str) -> str:
        self._require(schema, _OBJECT, place)
        named, required = schema.get("properties", {}), schema.get("required", [])
        names = list(dict.fromkeys((*named, *required)))
        if not names:
            return self._any_names(schema.get("additionalProperties", True), place)
        if self._writing.style is Style.GEMMA:
            names.sort()
        items = list[tuple[str, bool]]()
        for name in names:
            at = f"{place}.properties.{name}"
            if not self._writing.can_name(name) or named.get(name, True) is False:
                raise self._refused(at)
            before, behind = self._writing.key.split("$")
            key = text_rule(f"{before}{name}{behind}", self._marks)
            items.append((self._rule(f"{key} {self._value(named.get(name, True), at)}"), name in required))
        return self._sequence(items)

    def _any_names(self, schema: Any, place: str) -> str:
        """Returns the part for arguments of which no name is known."""
        if schema is False:
            return '""'
        before, behind = (text_rule(each, self._marks) for each in self._writing.key.split("$"))
        key = self._terminal(_KEYS[self._writing.style])
        item = self._rule(f"{before} {key} {behind} {self._value(schema, f'{place}.additionalProperties')}")
        separator = self._writing.separator
        return f"({item} ({literal(separator)} {item})*)?" if separator else f"{item}*"

    def _sequence(self, items: Iterable[tuple[str, bool]]) -> str:
        """Returns the part for items in this order, of which those that are not required may be left out."""
        separator = f"{literal(self._writing.separator)} " if self._writing.separator else ""
        first, behind = "", ""  # where no item stands before, and where one does
        is_optional = True
        for item, is_required in reversed(list(items)):
            begun = f"{item} {behind}"
            first = begun if is_required or not first else f"{begun} | {first}"
            is_optional = is_optional and not is_required
            behind = self._rule(f"({separator}{item}){'' if is_required else '?'} {behind}")
        return f"({first}){'?' if is_optional else ''}"

    def _value(self, schema: Any, place: str) -> str:
        """Returns the part for a value, with what is written behind it."""
        end = text_rule(self._writing.end, self._marks)
        match self._writing.style:
            case Style.GEMMA:
                return f"{self._gemma(schema, place)} {end}"
            case Style.PYTHON if self._kinds.of(schema) == {"boolean"} and not _constants(schema):
                return '("True" | "False")'
            case Style.TAGS if not self._kinds.is_tagged_json(schema):
                return self._untagged(schema, place)
        return f"{self._json(schema, place)} {end}"

    def _json(self, schema: Any, place: str) -> str:
        text = json.dumps(schema)
        if isinstance(schema, dict) and "$ref" in text:
            if self._refers_elsewhere or _REFERENCE.search(text):
                raise self._refused(place)
            schema = self._definitions | schema
        return json_rule(schema, place, self._extent)

    def _untagged(self, schema: Any, place: str) -> str:
        """Returns the part for a text, or null, between tags."""
        if is_free(schema):
            return self._text({}, place, self._writing.end)
        if not isinstance(schema, dict):
            raise self._refused(place)
        if "$ref" not in schema:
            return self._untagged_target(schema, place)
        self._require(schema, {"$ref"}, place)
        target = self._kinds.target(schema)
        return self._once(id(target), lambda: self._untagged(target, place))

    def _untagged_target(self, target: Mapping[str, Any], place: str) -> str:
        end, kinds = self._writing.end, self._kinds.of(target)
        if "anyOf" in target:
            self._require(target, {"type", "anyOf"}, place)
            return f"({' | '.join(self._untagged(each, place) for each in target['anyOf'])})"
        constants = _constants(target)
        if constants is not None:
            return self._constants(target, [each for each in constants if kind_of(each) in kinds], place)
        self._require(target, _TEXT, place)
        null = text_rule(f"null{end}", self._marks)
        text = self._text(target, place, end) if kinds & TEXT else null
        return f"({text} | {null})" if kinds == TEXT_OR_NULL else text

    def _constants(self, schema: Any, values: Collection[Any], place: str) -> str:
        self._require(schema, _CONSTANT, place)
        for value in values:
            if isinstance(value, str) and (value.strip("\n") != value or any(each in value for each in self._stops)):
                raise self._refused(place)
        texts = (text_rule(f"{self._writing.value(value)}{self._writing.end}", self._marks) for value in values)
        return f"({' | '.join(texts)})"

    def _text(self, schema: Mapping[str, Any], place: str, end: str) -> str:
        """Returns the part for a text as it stands, with its end."""
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        for word in ("minLength", "maxLength"):
            if word in schema and type(schema[word]) is not int:
                raise self._refused(f"{place}.{word}")
        key = (least, most, end)
        if key not in self._known:
            stops = "|".join(map(exactly, self._stops))
            pattern = f"/{ANY}{{{least},{most}}}/ & ~/{ANY}*({stops}){ANY}*/"
            if least and self._writing.style is Style.TAGS and not end.startswith("\n"):  # the reader strips line ends
                pattern += rf" & ~/\n{ANY}*/ & ~/{ANY}*\n/"
            self._known[key] = self._closed(pattern, end, may_lack=not least)
        return self._known[key]

    def _closed(self, pattern: str, end: str, *, may_lack: bool) -> str:
        """Returns the part for a text that ends before the first `end`, with it; `may_lack`: the text may be empty."""
        text = self._terminal(pattern)
        marks = [end.index(mark) for mark in self._marks if mark in end]
        plain, rest = end[: min(marks)] if marks else end, end[min(marks) :] if marks else ""
        if not rest:
            return self._rule(text, f"[suffix={literal(plain)}]")
        if plain:
            text = self._terminal(f"{text} {literal(plain)}")
        return f"{text}{'?' if may_lack and not plain else ''} {text_rule(rest, self._marks)}"

    def _gemma(self, schema: Any, place: str) -> str:
        if is_free(schema):
            return self._anything()
        if not isinstance(schema, dict):
            raise self._refused(place)
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema, place)
        if "anyOf" in schema:
            self._require(schema, {"anyOf"}, place)
            return f"({' | '.join(self._gemma(each, place) for each in schema['anyOf'])})"
        constants = _constants(schema)
        if constants is not None:
            found = self._kinds.of(schema)
            return self._constants(schema, [each for each in constants if kind_of(each) in found], place)
        types = schema.get("type")
        if not types:
            raise self._refused(place)
        self._require(schema, _OBJECT | _TEXT | _NUMBER | _LIST, place)
        types = [types] if isinstance(types, str) else types
        return f"({' | '.join(self._typed(each, schema, place) for each in types)})"

    def _typed(self, type: str, schema: Mapping[str, Any], place: str) -> str:
        quote = self._writing.quote
        if type == "string":
            return f"{text_rule(quote, self._marks)} {self._text(schema, place, quote)}"
        if type == "object":
            own = {word: value for word, value in schema.items() if word in _OBJECT}
            return f'"{{" {self._object(own, place)} "}}"'
        if type == "array":
            item = self._rule(self._gemma(schema.get("items", True), f"{place}.items"))
            return self._listed(item, schema.get("minItems", 0), schema.get("maxItems"), place)
        return self._json({word: schema[word] for word in _NUMBER if word in schema} | {"type": type}, place)

    def _listed(self, item: str, least: Any, most: Any, place: str) -> str:
        if type(least) is not int or type(most) not in (int, type(None)):
            raise self._refused(place)
        if most == 0:
            return '"[]"'
        more = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        items = f'{item} ("," {item}){more}'
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _referred(self, schema: Mapping[str, Any], place: str) -> str:
        """Returns the rule of the schema that a reference leads to, which may need itself."""
        self._require(schema, {"$ref"}, place)
        target = self._kinds.target(schema)
        return self._once(id(target), lambda: self._gemma(target, place))

    def _anything(self) -> str:
        """Returns the rule of every value, of Gemma."""
        key = ("anything",)

        def written() -> str:
            rule, name = self._known[key], self._terminal(_KEYS[Style.GEMMA])
            scalars = json_rule({"type": ["number", "boolean", "null"]}, "", Extent())
            text = self._typed("string", {}, "")
            lists = f'"[" ({rule} ("," {rule})*)? "]" | "{{" ({name} ":" {rule} ("," {name} ":" {rule})*)? "}}"'
            return f"{text} | {scalars} | {lists}"

        return self._once(key, written)

    def _once(self, key: object, written: Callable[[], str]) -> str:
        """Returns the rule of a key. The first place that needs the rule has it written; the rule may need itself."""
        if key not in self._known:
            at = len(self.lines)
            self._known[key] = f"value_{at}"
            self.lines.append("")
            self.lines[at] = f"value_{at}: {written()}"
        return self._known[key]

    def _rule(self, text: str, attribute: str = "") -> str:
        self.lines.append(f"value_{len(self.lines)}{attribute}: {text}")
        return f"value_{len(self.lines) - 1}"

    def _terminal(self, text: str) -> str:
        self.lines.append(f"TEXT_{len(self.lines)}: {text}")
        return f"TEXT_{len(self.lines) - 1}"

    def _require(self, schema: Mapping[str, Any], words: Collection[str], place: str) -> None:
        """Raises UnsupportedField for a word that is none of these."""
        for word in schema:
            if word not in words and word not in NOTES:
                raise self._refused(f"{place}.{word}")

    def _refused(self, place: str) -> UnsupportedField:
        return UnsupportedField(
            f"`{place}` cannot act: this version writes calls in the form {self._form.name}, whose grammar cannot keep "
            "it; remove it, or use tool_choice auto without strict",
            param=place,
        )


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    found = [schema["const"]] if "const" in schema else schema.get("enum")
    return found if isinstance(found, list) else None
