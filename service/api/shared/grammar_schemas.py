"""These wire models say what an answer must look like: TGI's `grammar`, OpenAI's `response_format`, vLLM's
`structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from service.api.shared.schemas import NOTHING, Absent, Wire, wrong
from service.api.shared.unions import BY_TYPE
from service.errors import UnsupportedField
from service.text.grammars import Grammar

MAX_OPTIONS: Final = 4096
SchemaJson = Annotated[
    dict[str, Any] | str | bool,
    BY_TYPE,
    Field(description="A JSON schema: an object, its JSON as text, true or false."),
]
Option = Annotated[str, Field(min_length=1, max_length=4096)]
Options = Annotated[list[Option], Field(min_length=1, max_length=MAX_OPTIONS, fail_fast=True)]
Pattern = Annotated[str, Field(min_length=1)]


class NamedSchema(Wire):
    """OpenAI's `json_schema`. The answer keeps the schema whether `strict` is set or not."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool, BY_TYPE, Field(alias="schema", description="A JSON schema.")] = True
    strict: bool | None = None


class ResponseFormat(Wire):
    """OpenAI's `response_format`, with TGI's `json` and `regex`, whose `value` is a schema or a pattern. `json_object`
    may have a schema as `value`, too: huggingface_hub makes that of `json_schema`."""

    type: Literal["text", "json_object", "json_schema", "json", "regex"]
    json_schema: NamedSchema | None = None
    value: SchemaJson | None = None

    @model_validator(mode="after")
    def _agree(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise wrong("json_schema", f"{'is missing' if self.json_schema is None else 'is'} for type json_schema")
        if self.value is None and self.type in ("json", "regex"):
            raise wrong("value", f"is missing for type {self.type}")
        if self.value is not None and self.type not in ("json", "regex", "json_object"):
            raise wrong("value", "is for the types json, regex and json_object")
        if self.type == "regex" and not isinstance(self.value, str):
            raise wrong("value", "must be a pattern: a string")
        return self


class GrammarFields(Wire):
    """TGI's `grammar`. `value` is a schema for `json` and `json_schema`, a pattern for `regex`, a list of texts for
    `choice`, a grammar for `lark`; `json_object` has none."""

    type: Literal["json", "json_schema", "json_object", "regex", "choice", "lark"]
    value: Annotated[SchemaJson | Options, BY_TYPE] | None = None

    @model_validator(mode="after")
    def _agree(self) -> GrammarFields:
        kinds: dict[str, type | tuple[type, ...]] = {
            "json_object": type(None), "regex": str, "lark": str, "choice": list,
        }  # fmt: skip
        if not isinstance(self.value, kinds.get(self.type, (dict, str, bool))):
            raise wrong("value", f"does not fit type {self.type}: see the description of `grammar`")
        return self


class StructuredOutputs(Wire):
    """vLLM's `structured_outputs`: exactly one of its fields."""

    later: ClassVar[dict[str, Absent]] = dict.fromkeys(
        (
            "structural_tag",
            "whitespace_pattern",
            "disable_any_whitespace",
            "disable_additional_properties",
            "disable_fallback",
        ),
        NOTHING,
    )
    json_: Annotated[SchemaJson | None, Field(alias="json")] = None
    regex: Pattern | None = None
    choice: Options | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        forms = [self.json_ is not None, bool(self.regex), bool(self.choice), bool(self.grammar)]
        if sum((*forms, bool(self.json_object))) != 1:
            raise wrong("json", "or regex, choice, grammar or json_object: send exactly one of them")
        return self


def refuse_beside(grammar: Grammar | None, prefix: str = "", **fields: int | bool | None) -> None:
    """Raises UnsupportedField for fields that would change where an answer may end."""
    for name, value in fields.items():
        if grammar is not None and value:
            raise UnsupportedField(
                f"`{prefix}{name}` cannot act beside `{grammar.field}`, which says where the answer may end: remove it",
                param=f"{prefix}{name}",
            )
