"""Bodies are calls that are no JSON, read as a whole: the text behind a form's opening, up to its closing.

    parameters   f>\\n<parameter=city>\\nSeoul\\n</parameter>\\n                  Qwen3-Coder, Nemotron 3, Seed, MiniMax
    GLM          f\\n<arg_key>city</arg_key>\\n<arg_value>Seoul</arg_value>\\n
    Python       [f(city="Seoul"), g()]                                        Llama 4, LFM2
    Gemma        call:f{city:<escape>Seoul<escape>}

Each reader takes the body and the schema of each function's parameters. It returns the calls it found; none where the
text is no call. Where a form does not tell texts from numbers, the schema does.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from service.errors import InvalidRequest
from service.text.arguments import MOST_LEVELS, parsed

Found = tuple[str, dict[str, Any]]
Schemas = Mapping[str, Any]
_NAMED: Final = re.compile(r'\s*"?([\w.:-]+)"?\s*>')
_PARAMETER: Final = re.compile(
    r'<parameter(?:=|\s+name=)"?([^>"]+)"?>(.*?)(?:</parameter>|(?=<parameter[=\s])|\Z)', re.DOTALL
)
_GLM_NAME: Final = re.compile(r"\s*([\w.:-]+)\s*(?=<arg_key>|\Z)")
_GLM_ARGUMENT: Final = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_GEMMA_CALL: Final = re.compile(r"\s*call:\s*([\w.:-]+)\s*(?=\{)")
_GEMMA_TEXT: Final = re.compile(r'(<escape>|<\|"\|>|")(.*?)\1', re.DOTALL)
_GEMMA_WORD: Final = re.compile(r"[^,:{}\[\]]+")
_WORDS: Final = {"True": True, "False": False, "None": None}


def parameter_calls(body: str, schemas: Schemas) -> list[Found]:
    named = _NAMED.match(body)
    if named is None:
        return []
    rest = body[named.end() :].strip()
    if rest.startswith("{"):  # Llama 3.1's own form
        return _whole(named[1], rest)
    return [(named[1], _typed(_PARAMETER.findall(rest), schemas.get(named[1])))]


def glm_call(body: str, schemas: Schemas) -> list[Found]:
    named = _GLM_NAME.match(body)
    return [] if named is None else [(named[1], _typed(_GLM_ARGUMENT.findall(body), schemas.get(named[1])))]


def python_calls(body: str, _schemas: Schemas) -> list[Found]:
    """Some models write a list of JSON objects in its place."""
    if re.match(r"\s*\[?\s*\{", body):
        given = _value(body.strip())
        objects = given if isinstance(given, list) else [given]
        return [call for each in objects for call in _object_call(each)]
    try:
        tree = ast.parse(body.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        calls = [_python_call(node) for node in nodes]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return calls


def _object_call(value: Any) -> list[Found]:
    if not isinstance(value, dict) or not isinstance(value.get("arguments"), dict):
        return []
    return [(str(value.get("name")), value["arguments"])]


def _python_call(node: ast.expr) -> Found:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with names for its arguments")
    given = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    return ast.unparse(node.func), given


def gemma_calls(body: str, _schemas: Schemas) -> list[Found]:
    named = _GEMMA_CALL.match(body)
    if named is None:
        return []
    try:
        given, _ = _gemma(body, named.end(), 0)
    except ValueError:
        return []
    return [(named[1], given)] if isinstance(given, dict) else []


def _gemma(text: str, at: int, level: int) -> tuple[Any, int]:
    """Returns the value at a place, and the place behind it. Raises ValueError for what is none."""
    if level > MOST_LEVELS:
        raise ValueError("nested too deep")
    if text[at : at + 1] == "{":
        given: dict[str, Any] = {}
        for start in _members(text, at, "}"):
            key, start[0] = _gemma(text, start[0], level + 1)
            if text[start[0] : start[0] + 1] != ":":
                raise ValueError("a key without a value")
            given[str(key)], start[0] = _gemma(text, start[0] + 1, level + 1)
            at = start[0]
        return given, text.index("}", at) + 1
    if text[at : at + 1] == "[":
        values = []
        for start in _members(text, at, "]"):
            value, start[0] = _gemma(text, start[0], level + 1)
            values.append(value)
            at = start[0]
        return values, text.index("]", at) + 1
    if quoted := _GEMMA_TEXT.match(text, at):
        return quoted[2], quoted.end()
    word = _GEMMA_WORD.match(text, at)
    if word is None:
        raise ValueError("no value")
    return _value(word[0].strip()), word.end()


def _members(text: str, at: int, closing: str) -> Iterator[list[int]]:
    """Yields where each member begins, in a list in which the reader leaves where it ended."""
    place = [at + 1]
    while text[place[0] : place[0] + 1] != closing:
        yield place
        following = text[place[0] : place[0] + 1]
        if following == ",":
            place[0] += 1
        elif following != closing:
            raise ValueError("no end")


def _typed(given: list[tuple[str, str]], schema: Any) -> dict[str, Any]:
    """Returns the arguments: a text stays one where the schema says so, or says nothing."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    known = properties if isinstance(properties, dict) else {}
    return {key.strip(): _argument(text, known.get(key.strip())) for key, text in given}


def _argument(text: str, schema: Any) -> Any:
    text = text.removeprefix("\n").removesuffix("\n")
    kinds = schema.get("type") if isinstance(schema, dict) else "string"
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds and text != "null"):
        return text
    return _value(text.strip())


def _value(text: str) -> Any:
    """Returns the value that a text is, as JSON or Python write it; else the text."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return parsed(f'{{"": {text}}}')[""]
    except InvalidRequest:
        return text


def _whole(name: str, text: str) -> list[Found]:
    try:
        return [(name, parsed(text))]
    except InvalidRequest:
        return []


def written(value: Any) -> str | None:
    """Returns a value as JSON; None for one that JSON does not have."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
