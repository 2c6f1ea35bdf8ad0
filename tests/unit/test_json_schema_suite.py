"""JSON Schema's own test suite: a schema that is accepted allows no value that the suite calls invalid, and every valid
one but those of NARROWED. The suite comes out of a source archive of a package, read where the test runs."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from service.errors import InvalidRequest
from service.text.grammars import Grammar
from service.text.grammars.matching import VocabularyGrammars
from tests.archives import source_archive
from tests.grammars import FIELD, encode, vocabulary

pytestmark = pytest.mark.nightly
PACKAGE, VERSION = "jsonschema", "4.26.0"
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
NARROWED: dict[str, tuple[str, ...]] = {
    # one writing of an integer: 1.0 is the number 1, and is written 1; no exponents above 1e22
    "const": ("float zero", "float one", "float -2.0"),
    "enum": ("float zero", "float one", "[0.0]", "[1.0]"),
    "type": ("a float with zero fractional part",),
    "float-overflow": ("valid if optional overflow handling",),
    # what stands beside `$ref` is kept in every draft
    "ref": ("ref valid, maxItems ignored",),
    # control characters have no writing; of white space, what all readers agree about
    "ecmascript-regex": ("Line tabulation", "zero-width whitespace", "Non-whitespace control"),
    # a format is kept in every draft, and may allow a part of its values
    "format": ("is only an annotation by default",),
    "date-time": ("leap second", "case-insensitive"),
    "time": ("leap second", "case-insensitive"),
    "hostname": ("punycoded", "maximum label length"),
    "email": ("quoted string", "IPv6-address-literal"),
    "ipv6": ("mixed format", "a long valid ipv6"),
}
"""By file of the suite: valid values that a grammar does not write, by words of their descriptions."""
_MOST_WRITINGS = 200


@dataclass(frozen=True)
class Case:
    """A schema of the suite, and its values."""

    file: str
    schema: Any
    values: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return f"{self.file}: {json.dumps(self.schema)}"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    return list(_read(source_archive(PACKAGE, VERSION, tmp_path_factory.mktemp("suite"))))


def _read(archive: Path) -> Iterator[Case]:
    with tarfile.open(archive) as members:
        for member in members:
            place = Path(*Path(member.name).parts[3:])
            if "/json/tests/draft" not in member.name or place.suffix != ".json" or place.parts[0] not in DRAFTS:
                continue
            file = members.extractfile(member)
            assert file is not None
            for group in json.load(file):
                schema = group["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": DRAFTS[place.parts[0]], **schema}
                yield Case(str(place), schema, group["tests"])


def writings(value: Any) -> Iterator[Any]:
    """A value with its properties in every order, which JSON Schema does not know; a grammar keeps one."""
    if isinstance(value, dict):
        for names in permutations(value) if len(value) <= 4 else [tuple(value)]:
            for inner in product(*(list(islice(writings(value[name]), 24)) for name in names)):
                yield dict(zip(names, inner, strict=True))
    elif isinstance(value, list):
        yield from map(list, product(*(list(islice(writings(each), 24)) for each in value)))
    else:
        yield value


def accepts(matcher: LLMatcher, value: Any) -> bool:
    return any(
        _accepts(matcher, json.dumps(each, ensure_ascii=False)) for each in islice(writings(value), _MOST_WRITINGS)
    )


def _accepts(matcher: LLMatcher, text: str) -> bool:
    ids, copy = encode(text.encode(errors="surrogatepass")), matcher.deep_copy()
    return copy.try_consume_tokens(ids) == len(ids) and copy.is_accepting() and not copy.is_error()


def compiled(grammars: VocabularyGrammars, case: Case) -> LLMatcher | None:
    """None where the schema is refused: by its place, or by the compiler with a reason."""
    try:
        return grammars.compile(Grammar.of_json_schema(case.schema, FIELD).text)
    except InvalidRequest as error:
        assert (error.param or "").startswith(FIELD) and error.message.startswith(f"`{FIELD}"), case.name
        return None
    except ValueError as error:
        assert str(error), case.name
        return None


def narrowings(case: Case, value: dict[str, Any]) -> set[tuple[str, str]]:
    """The lines of NARROWED that a value falls under."""
    file = Path(case.file).stem
    return {(file, words) for words in NARROWED.get(file, ()) if words in value["description"]}


def test_what_is_accepted_is_kept(cases: list[Case]) -> None:
    grammars, found = vocabulary(), Counter[str]()
    wrong, missed, narrowed = list[str](), list[str](), set[tuple[str, str]]()
    for case in cases:
        matcher = compiled(grammars, case)
        found["refused schemas" if matcher is None else "accepted schemas"] += 1
        if matcher is None:
            continue
        for value in case.values:
            is_accepted, told = accepts(matcher, value["data"]), f"{case.name}: {value['description']}"
            found["valid values" if value["valid"] else "invalid values"] += 1
            if is_accepted and not value["valid"]:
                wrong.append(told)
            if value["valid"] and not is_accepted:
                found["narrowed values"] += 1
                known = narrowings(case, value)
                narrowed |= known
                missed += [] if known else [told]
    print(dict(found))
    assert not wrong, "\n".join(wrong)
    assert not missed, "\n".join(missed)
    assert narrowed == {(file, words) for file, all_ in NARROWED.items() for words in all_}, "no line without a value"
    assert found["accepted schemas"] > 900 and found["invalid values"] > 1500
