"""Bodies are calls that are no JSON: the text behind a form's opening, up to its closing.

    tags     f>\\n<parameter=city>\\nSeoul\\n</parameter>\\n        Qwen3-Coder, Nemotron 3, Seed, MiniMax
             f\\n<arg_key>city</arg_key>\\n<arg_value>Seoul</arg_value>\\n                          GLM
    Python   [f(city="Seoul"), g()]                              Llama 4, LFM2
    Gemma    call:f{city:<escape>Seoul<escape>}

Bodies of Python and Gemma are read here as a whole: each reader takes the body, and returns the calls that it found;
none where the text is no call. Tags are read as they come, by `service.text.tools.tagged`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from service.text.arguments import MOST_LEVELS, loaded

Found = tuple[str, dict[str, Any]]
_GEMMA_CALL: Final = re.compile(r"\s*call:\s*([\w.:-]+)\s*(?=\{)")
_GEMMA_TEXT: Final = re.compile(r'(<escape>|<\|"\|>|")(.*?)\1', re.DOTALL)
_GEMMA_WORD: Final = re.compile(r"[^,:{}\[\]]+")
_WORDS: Final = {"True": True, "False": False, "None": None}
_JSON_WORDS: Final = {"true": True, "false": False, "null": None}
_NO_PYTHON: Final = (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError)
"""What `ast` raises: `{[1]: 2}` is a TypeError, a whole number of 400 digits plus `1j` an OverflowError."""


def python_calls(body: str) -> list[Found]:
    """Some models write a list of JSON objects in its place."""
    if re.match(r"\s*\[?\s*\{", body):
        value = value_of(body.strip())
        objects = value if isinstance(value, list) else [value]
        return [call for each in objects for call in _object_call(each)]
    try:
        tree = ast.parse(body.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        calls = [_python_call(node) for node in nodes]
    except _NO_PYTHON:
        return []
    return calls


def _object_call(value: Any) -> list[Found]:
    if not isinstance(value, dict) or not isinstance(value.get("arguments"), dict):
        return []
    return [(str(value.get("name")), value["arguments"])]


class _JsonWords(ast.NodeTransformer):
    """Reads `true`, `false` and `null` as what they are in JSON."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


def _python_call(node: ast.expr) -> Found:
    if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
        raise ValueError("no call with names for its arguments")
    arguments = {str(each.arg): ast.literal_eval(_JsonWords().visit(each.value)) for each in node.keywords}
    return ast.unparse(node.func), arguments


def gemma_calls(body: str) -> list[Found]:
    named = _GEMMA_CALL.match(body)
    if named is None:
        return []
    try:
        arguments, _ = _gemma(body, named.end(), 0)
    except ValueError:
        return []
    return [(named[1], arguments)] if isinstance(arguments, dict) else []


def _gemma(text: str, at: int, level: int) -> tuple[Any, int]:
    """Returns the value at a place, and the place behind it. Raises ValueError for what is none."""
    if level > MOST_LEVELS:
        raise ValueError("nested too deep")
    if text[at : at + 1] == "{":
        mapping: dict[str, Any] = {}
        for start in _members(text, at, "}"):
            key, start[0] = _gemma_text(text, start[0])
            if text[start[0] : start[0] + 1] != ":":
                raise ValueError("a key without a value")
            mapping[key], start[0] = _gemma(text, start[0] + 1, level + 1)
            at = start[0]
        return mapping, text.index("}", at) + 1
    if text[at : at + 1] == "[":
        values = []
        for start in _members(text, at, "]"):
            value, start[0] = _gemma(text, start[0], level + 1)
            values.append(value)
            at = start[0]
        return values, text.index("]", at) + 1
    word, end = _gemma_text(text, at)
    return word if _GEMMA_TEXT.match(text, at) else value_of(word), end


def _gemma_text(text: str, at: int) -> tuple[str, int]:
    """Returns the quoted text or the word at a place, and the place behind it."""
    if quoted := _GEMMA_TEXT.match(text, at):
        return quoted[2], quoted.end()
    word = _GEMMA_WORD.match(text, at)
    if word is None:
        raise ValueError("no value")
    return word[0].strip(), word.end()


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


def value_of(text: str) -> Any:
    """Returns the value that a text is, as JSON or Python write it; else the text."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return loaded(text, MOST_LEVELS - 1)
    except ValueError:
        return text


def written(value: Any) -> str | None:
    """Returns a value as JSON; None for one that JSON or UTF-8 does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return text
