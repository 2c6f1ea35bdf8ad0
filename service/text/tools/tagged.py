"""Tagged calls are a function's name, and its arguments between tags of a key and a value each.

    f>\\n<parameter=city>\\nSeoul\\n</parameter>\\n</function>

Texts stand as they are, all other values as JSON: the schema says which of both a value is.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, Final

from service.text.tools.bodies import Found, value_of
from service.text.tools.form import ToolFormat
from service.text.tools.kinds import TEXT, TEXT_OR_NULL, Kinds, kind_of, schema_of
from service.text.tools.source import Source

_BEGINNINGS: Final = {'"': "string", "{": "object", "[": "array"}
"""Values in which a closing may stand as a text."""
_NAME: Final = re.compile(r'\s*"?([\w.:-]+)"?\s*')


def tagged_call(
    source: Source, form: ToolFormat, schemas: Mapping[str, Any], kinds: Mapping[str, Kinds]
) -> Generator[None, None, list[Found]]:
    """Takes one call behind its opening. Returns it; none where the text is no call. `schemas` has the parameters of
    each function, `kinds` has what is known of each."""
    assert form.writing is not None
    opening, key_closing, value_opening = form.writing.key_tags
    ends = (form.writing.value_closing, opening, form.closing)
    head, _ = yield from source.up_to((">", opening, form.closing))
    yield from source.skip(">")
    named, arguments = _NAME.fullmatch(head), dict[str, Any]()
    schema = schemas.get(named[1]) if named else None
    known = kinds.get(named[1], Kinds(None)) if named else Kinds(None)
    while (yield from source.up_to((opening, form.closing)))[1] == opening:
        source.take(len(opening))
        key = ((yield from source.until(key_closing)) or "").strip()
        if value_opening:
            yield from source.until(value_opening)
        arguments[key] = yield from _value(source, ends, schema_of(schema, key), known)
    is_whole = yield from source.skip(form.closing)
    return [(named[1], arguments)] if named and is_whole else []


def _value(source: Source, ends: tuple[str, str, str], schema: Any, known: Kinds) -> Generator[None, None, Any]:
    """Takes a value up to its closing, the first of `ends`, or to another of them where that was left out."""
    text, kinds = "", known.of(schema)
    if known.is_tagged_json(schema):
        yield from source.blanks()
        if _BEGINNINGS.get((yield from source.peek())) in kinds:
            text = yield from source.value()
    rest, mark = yield from source.up_to(ends)
    if mark == ends[0]:
        source.take(len(mark))
    return _read(text + rest, kinds)


def _read(text: str, kinds: frozenset[str]) -> Any:
    """Returns the value between two tags. Where it may be a text, one of another kind must be one of `kinds`."""
    plain = text.removeprefix("\n").removesuffix("\n")
    if kinds == TEXT:
        return plain
    if kinds == TEXT_OR_NULL:
        return None if plain == "null" else plain
    value = value_of(text.strip())
    return value if kind_of(value) in kinds or "string" not in kinds else plain
