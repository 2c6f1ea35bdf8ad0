"""The grammar that a body asks for, from the field of any dialect."""

from __future__ import annotations

from typing import Any

from service.api.dialects.closed_schemas import closed
from service.api.schemas.grammars import GrammarFields, ResponseFormat, StructuredOutputs
from service.api.schemas.openai import OpenAISampling
from service.errors import InvalidRequest, UnsupportedField
from service.text.grammars import Grammar


def openai_grammar(body: OpenAISampling) -> Grammar | None:
    """Returns the grammar of `response_format`, `structured_outputs` or one of the `guided_*` fields. Raises
    InvalidRequest for two of them."""
    found = [
        _response_format(body.response_format),
        body.structured_outputs and _structured(body.structured_outputs),
        None if body.guided_json is None else Grammar.of_json_schema(body.guided_json, "guided_json"),
        body.guided_regex and Grammar.of_regex(body.guided_regex, "guided_regex"),
        body.guided_choice and Grammar.of_choice(body.guided_choice, "guided_choice"),
        body.guided_grammar and Grammar.of_lark(body.guided_grammar, "guided_grammar"),
    ]
    grammars = [each for each in found if isinstance(each, Grammar)]
    if len(grammars) > 1:
        first, second = grammars[0].field, grammars[1].field
        raise InvalidRequest(f"`{second}` cannot act beside `{first}`: send one of them", param=second)
    grammar = grammars[0] if grammars else None
    _refuse_beside(grammar, min_tokens=body.min_tokens, ignore_eos=body.ignore_eos)
    return grammar


def native_grammar(fields: GrammarFields | None, min_new_tokens: int | None, ignore_eos: bool | None) -> Grammar | None:
    """Returns the grammar of `parameters.grammar`."""
    if fields is None:
        return None
    field = "parameters.grammar.value"
    match fields.type, fields.value:
        case "regex", str(pattern):
            grammar = Grammar.of_regex(pattern, field)
        case "lark", str(text):
            grammar = Grammar.of_lark(text, field)
        case "choice", list(options):
            grammar = Grammar.of_choice(options, field)
        case "json_object", _:
            grammar = Grammar.of_json_object("parameters.grammar")
        case "json_schema", {"schema": schema, **rest} if rest.keys() <= {"name", "description", "strict"}:
            grammar = Grammar.of_json_schema(schema, f"{field}.schema")
        case _, schema:
            grammar = Grammar.of_json_schema(schema, field)
    _refuse_beside(grammar, "parameters.", min_new_tokens=min_new_tokens, ignore_eos=ignore_eos)
    return grammar


def ollama_grammar(asked: dict[str, Any] | str | None) -> Grammar | None:
    """Returns the grammar of Ollama's `format`: a schema, or "json" for any object."""
    if isinstance(asked, dict):
        return Grammar.of_json_schema(closed(asked), "format")
    return Grammar.of_json_object("format") if asked else None


def _refuse_beside(grammar: Grammar | None, prefix: str = "", **fields: int | bool | None) -> None:
    """Raises UnsupportedField for fields that would change where an answer may end."""
    for name, value in fields.items():
        if grammar is not None and value:
            raise UnsupportedField(
                f"`{prefix}{name}` cannot act beside `{grammar.field}`, which says where the answer may end: remove it",
                param=f"{prefix}{name}",
            )


def _response_format(asked: ResponseFormat | None) -> Grammar | None:
    if asked is None or asked.type == "text":
        return None
    if asked.json_schema is not None:
        return Grammar.of_json_schema(asked.json_schema.schema_, "response_format.json_schema.schema")
    if asked.type == "regex":
        return Grammar.of_regex(str(asked.value), "response_format.value")
    if asked.value is not None:
        return Grammar.of_json_schema(asked.value, "response_format.value")
    return Grammar.of_json_object("response_format")


def _structured(asked: StructuredOutputs) -> Grammar:
    if asked.json_ is not None:
        return Grammar.of_json_schema(asked.json_, "structured_outputs.json")
    if asked.regex:
        return Grammar.of_regex(asked.regex, "structured_outputs.regex")
    if asked.choice:
        return Grammar.of_choice(asked.choice, "structured_outputs.choice")
    if asked.grammar:
        return Grammar.of_lark(asked.grammar, "structured_outputs.grammar")
    return Grammar.of_json_object("structured_outputs.json_object")
