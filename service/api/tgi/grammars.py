"""The grammar that `parameters.grammar` of a native body asks for."""

from __future__ import annotations

from service.api.shared.grammar_schemas import GrammarFields, refuse_beside
from service.text.grammars import Grammar


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
    refuse_beside(grammar, "parameters.", min_new_tokens=min_new_tokens, ignore_eos=ignore_eos)
    return grammar
