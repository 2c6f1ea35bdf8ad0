"""The grammar that a body of OpenAI's completions asks for, from one of its six fields."""

from __future__ import annotations

from service.api.openai.schemas import OpenAISampling
from service.api.shared.grammar_schemas import ResponseFormat, StructuredOutputs, refuse_beside
from service.errors import InvalidRequest
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
    refuse_beside(grammar, min_tokens=body.min_tokens, ignore_eos=body.ignore_eos)
    return grammar


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
