"""A union of JSON types is read by the type of the value: an error then names the field alone, and says what the one
form that the value has lacks, or all forms.

    think: bool | Literal["low", "high"]        "max"  ─▶  `think` must be 'low' or 'high'
                                                    5  ─▶  `think` must be 'low', 'high', true or false
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from service.api.http.errors import hidden

_KINDS: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
"""JSON types by those that a parser makes of them."""
_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "bool": ("boolean",),
    "int": ("integer",),
    "float": ("integer", "number"),
    "str": ("string",),
    "list": ("array",),
    "dict": ("object",),
    "model": ("object",),
}
_FORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "object": ("an object",),
    "array": ("a list",),
    "string": ("a string",),
    "number": ("a number",),
    "integer": ("a whole number",),
    "boolean": ("true", "false"),
}
"""The words of an error, in their order."""


class _ByType:
    """The annotation of a union whose members take different JSON types. A whole number is a number where no member
    takes whole numbers alone."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices, forms = dict[str, CoreSchema](), dict[str, list[str]]()
        union = handler(source)
        if union["type"] != "union":
            raise TypeError(f"{source} is no union of two or more types")
        for member in (each[0] if isinstance(each, tuple) else each for each in union["choices"]):
            for kind, words in _forms(member, handler):
                if kind not in forms or member["type"] == "int":
                    choices[hidden(kind)], forms[kind] = member, words
        return core_schema.tagged_union_schema(
            choices,
            discriminator=_kind,
            custom_error_type="wrong_field",
            custom_error_message="{text}",
            custom_error_context={"text": f"must be {_listed(forms)}"},
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Returns `anyOf`: a whole number is a number as well."""
        written = handler(schema)
        return {"anyOf" if word == "oneOf" else word: value for word, value in written.items()}


BY_TYPE: Final = _ByType()


def _kind(value: object) -> str | None:
    kind = "object" if isinstance(value, BaseModel) else _KINDS.get(type(value))
    return None if kind is None else hidden(kind)


def _forms(member: CoreSchema, handler: GetCoreSchemaHandler) -> Iterator[tuple[str, list[str]]]:
    """Yields the JSON types that a member takes, with their words."""
    schema: Any = handler.resolve_ref_schema(member)
    while schema["type"] not in (*_MEMBERS, "literal", "tagged-union"):
        schema = schema["schema"]
    if schema["type"] == "literal":
        yield from ((_KINDS[type(each)], list(map(repr, schema["expected"]))) for each in schema["expected"])
    elif schema["type"] == "tagged-union":
        for choice in schema["choices"].values():
            yield from _forms(choice, handler)
    else:
        yield from ((kind, list(_FORMS[kind])) for kind in _MEMBERS[schema["type"]])


def _listed(forms: Mapping[str, list[str]]) -> str:
    """Returns the words of all forms, without whole numbers where any number will do."""
    shown = [kind for kind in _FORMS if kind in forms and not (kind == "integer" and "number" in forms)]
    words = [word for kind in shown for word in forms[kind]]
    return ", ".join(words[:-1]) + f" or {words[-1]}" if len(words) > 1 else words[0]
