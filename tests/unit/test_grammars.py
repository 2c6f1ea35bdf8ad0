"""Grammars from regexes, choices and Lark: exactly the texts that were asked for, compiled and matched."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.process.grammar_loading import CompiledGrammars
from service.engine.protocol.messages import SamplingParams
from service.errors import InvalidRequest, UnsupportedField
from service.text.grammars import Grammar
from service.text.grammars.grammar import MAX_GRAMMAR_BYTES, MAX_TEXT_BYTES
from service.text.grammars.matching import VocabularyGrammars
from tests.effort import drawn
from tests.grammars import FIELD, TOKENS, decode, encode, fits, vocabulary


def matched(pattern: str, *texts: str) -> list[str]:
    grammar = Grammar.of_regex(pattern, FIELD)
    return [text for text in texts if fits(grammar, text)]


# -- regexes ----------------------------------------------------------------------------------------------------------


MATCHED: list[tuple[str, str, str]] = [
    ("a/b", "a/b", "ab"),
    ("^[0-9]{3}$", "042", "42"),
    ("[😀-🙏]{2}", "😨😨", "😨"),
    ("^[가-힣]{2}$", "서울", "ab"),
    (r"a\/b", "a/b", r"a\/b"),
    (r"a\\/b", r"a\/b", "a/b"),
    (r"a\\\/b", r"a\/b", "a/b"),
    ("[/]", "/", "["),
    ("[^/]+", "ab", "a/b"),
    ("//", "//", "/"),
    ("/i", "/i", "/I"),
    ("a // b", "a // b", "a "),
    ("a\nb", "a\nb", "anb"),
    ("a\\\nb", "a\nb", "anb"),
    (r"a\nb", "a\nb", r"a\nb"),
    (r"a\\nb", r"a\nb", "a\nb"),
    ("a\\\\\nb", "a\\\nb", "a\\nb"),
    ("a\r\tb\x00", "a\r\tb\x00", "a"),
    ("\u2028\x85", "\u2028\x85", "\n"),
    (r"\\", "\\", r"\\"),
    (r"\\\\", r"\\", "\\"),
    ('"', '"', "'"),
    ("#", "#", ""),
    ("도시락{2}", "도시락락", "도시락도시락"),
    ("[가-힣]{2,3}", "김밥", "김"),
    ("^a$", "a", "b"),
    ("(?i)ab", "aB", "b"),
    ("(?s).", "\n", ""),
    (".", "\r", "\n"),
    ("a|bc", "bc", "ac"),
    ("a|", "", "b"),
    ("a*", "aaa", "ab"),
    (r"[0-9]{3}-[0-9]{4}", "010-1234", "010-12345"),
    (r"\p{L}+", "도Ä", "1"),
    ("😀+", "😀😀", "😁"),
]
"""A pattern, an answer that it matches, and another."""


def test_a_regex_matches_the_whole_answer() -> None:
    for pattern, right, wrong in MATCHED:
        assert matched(pattern, right, wrong) == [right], pattern
        assert matched(pattern, right + "/", "/" + right) == [], pattern


UNREADABLE = ["\\", "a\\", "a\\\\\\", "(a", "a)", "a)|(b", "[a", "a{2,1}", "(?=a)a", r"(a)\1", r"\bfoo"]


def test_a_regex_that_nobody_can_follow() -> None:
    for pattern in UNREADABLE:
        with pytest.raises(ValueError, match=r"."):
            fits(Grammar.of_regex(pattern, FIELD), "a")


def test_a_regex_with_comments_is_refused() -> None:
    for pattern in ("(?x) a  # first\n b", "(?i)(?sx:a b)"):
        with pytest.raises(UnsupportedField, match="the flag `x`"):
            Grammar.of_regex(pattern, FIELD)
    assert Grammar.of_regex(r"\(?x:|[(?x:]|(?P<x>a)|(?i:x)", FIELD).text


def test_an_empty_regex_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is empty"):
        Grammar.of_regex("", FIELD)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), other=st.text(max_size=8))
@settings(max_examples=drawn(150, 3000), deadline=None)
def test_an_escaped_text_matches_itself(text: str, other: str) -> None:
    """As Python escapes it: each special character and each control character behind a backslash, or not."""
    other = other.encode(errors="ignore").decode()
    assert matched(re.escape(text), text, other) == ([text, other] if other == text else [text])


# -- behind reasoning --------------------------------------------------------------------------------------------------

MARKS = ("<think>", "</think>")


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.of_choice(["yes"], FIELD),
        Grammar.of_json_schema({"const": "yes"}, FIELD),
        Grammar.of_choice(["no"], FIELD).or_else(Grammar.of_regex("yes|maybe", FIELD)),
    ],
    ids=["lark", "json", "two"],
)
def test_a_grammar_holds_behind_the_reasoning(grammar: Grammar) -> None:
    yes = '"yes"' if fits(grammar, '"yes"') else "yes"
    said, opened = (grammar.behind_reasoning(*MARKS, {}, is_open=each) for each in (False, True))
    free = 'x < y </th {"a": <think>\n\n'
    for blanks in ("", "\n", "\n\n"):
        assert fits(opened, f"{free}</think>{blanks}{yes}")
        assert fits(said, f"<think>{free}</think>{blanks}{yes}")
    assert fits(said, yes) and not fits(opened, yes)
    assert not fits(said, f"{free}</think>{yes}")
    for wrong in ("", "\n\n\n" + yes, "nope", yes + "x"):
        assert not fits(opened, f"{free}</think>{wrong}")
        assert not fits(said, f"<think>{free}</think>{wrong}")


def test_a_grammar_of_any_text_leaves_the_reasoning_free() -> None:
    grammar = Grammar.of_regex(r"[^\n]*", FIELD).behind_reasoning(*MARKS, {}, is_open=False)
    assert fits(grammar, "<think>a\nb</think>\n\nc") and fits(grammar, "<thin")
    assert not fits(grammar, "<think>a") and not fits(grammar, "<think>a</think>\n\nb\nc") and not fits(grammar, "b\nc")


def test_marks_that_are_control_tokens_are_tokens() -> None:
    ids = {"<think>": 0, "</think>": 1}
    grammar = Grammar.of_choice(["yes"], FIELD).behind_reasoning(*MARKS, ids, is_open=False)
    for text, is_right in (("a b", True), ("", True)):
        matcher = vocabulary().compile(grammar.text)
        tokens = [0, *encode(text.encode()), 1, *encode(b"\nyes")]
        assert (matcher.try_consume_tokens(tokens) == len(tokens)) is is_right
        assert matcher.is_accepting() is is_right
    large = Grammar.of_choice(["yes"], FIELD).behind_reasoning(*MARKS, {"<think>": 151667, "</think>": 151668}, False)
    with pytest.raises(ValueError, match="range"):
        vocabulary().compile(large.text)
    vocabulary().compile(large.trial)


# -- choices ----------------------------------------------------------------------------------------------------------

OPTIONS = [
    'say "hi"',
    "a\nb\r\n",
    "back\\slash \\n",
    "도시락",
    "\t\x00\x1f\x7f\x80\u2028",
    "😀",
    "it's",
    " lead",
    "trail ",
    "{}$%",
    "<|end|>",
    "<[1]>",
    "// no comment",
    "# none",
    "/re/",
    '"i',
    '" | "b',
    "\\u0041",
    "%json",
    "start: x",
]


def test_a_choice_is_one_of_the_texts() -> None:
    grammar = Grammar.of_choice(OPTIONS, FIELD)
    assert all(fits(grammar, option) for option in OPTIONS)
    assert not any(fits(grammar, option[:-1]) or fits(grammar, option + "x") for option in OPTIONS)
    assert not any(fits(grammar, other) for other in ("", "A", "b", "<", "a\nb", json.dumps(OPTIONS[0])))


@given(options=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1), other=st.text())
@settings(max_examples=drawn(150, 3000), deadline=None)
def test_any_texts_can_be_a_choice(options: list[str], other: str) -> None:
    grammar = Grammar.of_choice(options, FIELD)
    assert all(fits(grammar, option) for option in options)
    assert fits(grammar, other) == (other in options)


def test_a_text_may_begin_or_repeat_another() -> None:
    grammar = Grammar.of_choice(["men", "menu", "me", "menu"], FIELD)
    assert [fits(grammar, text) for text in ("m", "me", "men", "menu", "menus")] == [False, True, True, True, False]


def test_a_choice_without_options_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no option"):
        Grammar.of_choice([], FIELD)


# -- Lark -------------------------------------------------------------------------------------------------------------


def test_a_lark_grammar() -> None:
    grammar = Grammar.of_lark('start: "<" item ("," item)* ">"\nitem: NAME | start\nNAME: /[a-z]+/', FIELD)
    right, wrong = ["<a>", "<a,b>", "<a,<b,c>>"], ["", "<>", "<a", "<a,>", "a"]
    assert [fits(grammar, text) for text in (*right, *wrong)] == [True] * 3 + [False] * 5


NO_GRAMMARS = ["", "start: nothing", 'begin: "a"', "start: (", 'start: "a', "{}", "[1]", ' \n{"grammars": []}']


def test_a_lark_grammar_that_is_none() -> None:
    for text in NO_GRAMMARS:
        with pytest.raises((ValueError, InvalidRequest), match=r"."):
            fits(Grammar.of_lark(text, FIELD), "a")


REFUSED_LARK: dict[str, list[str]] = {
    "temperature": [
        'start: a\na[temperature=0.5]: "a"',
        'start[lazy, temperature = 1]: "a"',
        'start: a\n?a [temperature=0.5]: "b"',
        'start: a\na[stop="]", temperature=0.5]: /[a-z]*/',
        'start: a\na[stop="[", temperature=0.5]: /[a-z]*/',
        "start: a\na[stop=/]/, temperature=0.5]: /[a-z]*/",
        '# "\nstart: a\na[temperature=0.5]: "b"',
        '// /\nstart: a\na[temperature=0.5]: "b"',
    ],
    "max_tokens": ['start: "a" b\nb[max_tokens=3]: /[a-z]*/', 'start: b\nb[stop="x",max_tokens=3]: /[a-z]*/'],
    "capture": ['start: b\nb[capture]: "x"', 'start: b\nb[capture="b"]: "x"'],
    "stop_capture": ['start: b\nb[stop="q", stop_capture="b"]: /[a-z]*/'],
    "%llguidance": ['%llguidance {"allow_invalid_utf8": true}\nstart: /(?s:.)/', '%llguidance {"x": 1}\nstart: "a"'],
    "token of one vocabulary": [
        "start: <[65]>",
        "start: <[1-50]>",
        "start: <end>",
        'start: "a" <|im_end|>',
        "start: <[^65]>",
    ],
    "cannot keep": ['start: %json {"typ": 1}', 'start: %json {"x-guidance": {"lenient": true}}'],
    "without a JSON schema": ["start: %json", "start: %json {", "start: %json " + "[" * 10_000],
}


def test_what_would_not_act_in_a_lark_grammar_is_refused() -> None:
    for words in REFUSED_LARK:
        for text in REFUSED_LARK[words]:
            with pytest.raises(InvalidRequest, match=words) as caught:
                Grammar.of_lark(text, FIELD)
            assert (caught.value.param or "").startswith(FIELD)


LARK = [
    ('start: "[temperature=1]: <end> %json"', "[temperature=1]: <end> %json"),
    (r"start: /[temperature=1]:\/<[a-z]>/", "t:/<x>"),
    ('start: "a" # [temperature=1]:\n', "a"),
    ('start: "a" // [capture]: <end>\n', "a"),
    ('start: [capture] "b"\ncapture: "a"', "ab"),
    (r'start: "\"<end>"', '"<end>'),
    ('start: a\na[stop="q"]: /[a-z]*/', "abcq"),
    ('start: %json {"type": "string", "format": "date", "title": "<end>"} "x"', '"2024-02-29"x'),
    ('start: a b\na: %json {"const": 1}\nb: %json {"enum": ["é"]}', '1"é"'),
    ('start: %regex {"substring_words": "ab c"}', "ab"),
]


def test_what_acts_in_a_lark_grammar() -> None:
    for text, right in LARK:
        grammar = Grammar.of_lark(text, FIELD)
        assert fits(grammar, right) and not fits(grammar, right + "!")


def test_a_schema_in_a_lark_grammar_is_kept_as_alone() -> None:
    grammar = Grammar.of_lark('start: %json {"format": "date"}', FIELD)
    assert [fits(grammar, text) for text in ('"2024-02-29"', '"2024-02-30"')] == [True, False]


def _slow_texts() -> Iterator[str]:
    """Texts that a careless pattern reads again from each place."""
    for part in ("a[\n", "\n", r"\/", r"\"", "/a", '"a', "<a", "%json {} ", "%json [] ", "[", "]", "[a]", "#", "/\\"):
        yield "start: /" + part * (MAX_TEXT_BYTES // len(part) - 10)
        yield 'start: "' + part * (MAX_TEXT_BYTES // len(part) - 10)
        yield part * (MAX_TEXT_BYTES // len(part))


def test_a_lark_grammar_is_read_in_time_by_its_length() -> None:
    for text in _slow_texts():
        started = time.thread_time()
        with suppress(InvalidRequest):
            Grammar.of_lark(text, FIELD)
        assert time.thread_time() - started < 0.6, text[:40]


# -- all of them ------------------------------------------------------------------------------------------------------

LONGEST: dict[str, Any] = {
    "of_regex": lambda size: "a" * size,
    "of_choice": lambda size: ["a" * size],
    "of_lark": lambda size: "a" * size,
    "of_json_schema": lambda size: {"const": "a" * size},
}


@pytest.mark.parametrize("made", LONGEST)
def test_sizes(made: str) -> None:
    def grammar(size: int) -> Grammar:
        return getattr(Grammar, made)(LONGEST[made](size), FIELD)  # type: ignore[no-any-return]

    is_text = made in ("of_regex", "of_lark")
    most = MAX_TEXT_BYTES if is_text else MAX_GRAMMAR_BYTES - (len(grammar(1).text.encode()) - 1)
    assert len(grammar(most).text) == MAX_GRAMMAR_BYTES or is_text
    with pytest.raises(
        InvalidRequest, match=f"{MAX_TEXT_BYTES if is_text else MAX_GRAMMAR_BYTES} are the most"
    ) as caught:
        grammar(most + 1)
    assert caught.value.param == FIELD


def test_lone_surrogates_are_refused() -> None:
    for made in LONGEST:
        for text in ["\ud800", "a\udfffb", "\udc00\ud800"]:
            values = {"of_choice": ["a", text], "of_json_schema": {"properties": {text: {"const": text}}}}
            with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
                getattr(Grammar, made)(values.get(made, text), FIELD)
            assert caught.value.param == FIELD


def test_a_json_object() -> None:
    grammar = Grammar.of_json_object(FIELD)
    assert [fits(grammar, text) for text in ("{}", '{"a": [1, {"b": null}]}', "[]", "1", '{"a":1}', "")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip


def test_equal_grammars_have_equal_texts() -> None:
    """They are the keys of what is known of a grammar."""
    first, second = ({"type": "object", "properties": {"a": {"enum": ["가"]}}} for _ in range(2))
    assert Grammar.of_json_schema(first, "one").text == Grammar.of_json_schema(json.dumps(second), "two").text


# -- compiling --------------------------------------------------------------------------------------------------------


def test_a_reason_says_what_is_wrong_and_not_more() -> None:
    for text in ("start: nothing", 'start: "a', Grammar.of_regex("(" * 9999, FIELD).text, "start: a\na: a"):
        with pytest.raises(ValueError, match=r".") as caught:
            vocabulary().compile(text)
        assert len(str(caught.value)) < 400 and "<state>" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no text fits it"):
        vocabulary().compile(Grammar.of_json_schema({"$ref": "#"}, FIELD).text)


def test_a_panic_of_the_compiler_is_an_error_of_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException): ...

    def panic(*arguments: object, **named: object) -> None:
        raise PanicException("index out of bounds")

    monkeypatch.setattr("service.text.grammars.matching.LLMatcher", panic)
    with pytest.raises(ValueError, match="could not be compiled"):
        vocabulary().compile('start: "a"')


def test_long_texts_are_written_in_parts() -> None:
    """The tokenizer is asked for the next 4 KiB at most, also where a character lies across their end."""
    asked: list[int] = []

    def counted(text: bytes) -> list[int]:
        text.decode()
        asked.append(len(text))
        return encode(text)

    text = "도시락 menu" * 900 + "끝"
    matcher = VocabularyGrammars.of_tokens(TOKENS, counted).compile(Grammar.of_choice([text], FIELD).text)
    ids: list[int] = []
    while not matcher.is_stopped():
        forced = matcher.compute_ff_tokens()
        assert forced and matcher.consume_tokens(forced)
        ids += forced
    assert decode(ids).decode() == text and not matcher.is_error()
    assert 4000 < max(asked) <= 4096


def test_a_text_that_the_tokenizer_writes_otherwise_gets_the_longest_tokens() -> None:
    """A control token for its name, other letters, an id behind the vocabulary, or nothing."""
    for wrong in ([3], [ord("A")] * 4, [999_999], [-1], []):
        grammars = VocabularyGrammars.of_tokens([*TOKENS, None], lambda text, wrong=wrong: wrong)  # type: ignore[misc]
        matcher = grammars.compile(Grammar.of_choice(["menu도시락"], FIELD).text)
        forced = matcher.compute_ff_tokens()
        assert decode(forced) == "menu도시락".encode() and len(forced) == 2
        assert matcher.consume_tokens(forced) and matcher.is_stopped() and not matcher.is_error()


def test_ids_without_text_are_never_allowed() -> None:
    size = len(TOKENS) + 77
    grammars = vocabulary(size)
    assert grammars.end_id == size
    for text in ("start: /(?s:.*)/", "start: /[<0-9>]*/"):
        mask = grammars.compile(text).compute_bitmask()
        bits = int.from_bytes(mask, "little")
        assert 8 * len(mask) > size and bits >> size & 1, "the end is allowed"
        assert not any(bits >> id & 1 for id in range(len(TOKENS), size))


SPELLED = [
    ('start: "ac"', [0], "broken"),
    ('start: "a" ("c" | "d")', [0], "broken"),
    ("start: /(a|c)b/", [0, 1], "complete"),
    ('start: "ab" | "c"', [0, 1], "complete"),
    ("start: /a+c/", [0] * 9, "open"),
]


def test_a_vocabulary_that_cannot_spell_a_character() -> None:
    """What it can spell is allowed; where a character is needed that it lacks, the answer ends with an error."""
    for text, output, ends in SPELLED:
        grammars = VocabularyGrammars.of_tokens([b"a", b"b"], lambda text: [max(0, byte - ord("a")) for byte in text])
        constraint = CompiledGrammars(grammars).constraint(SamplingParams(max_tokens=9, grammar=text))
        assert constraint is not None
        found: list[int] = []
        while len(found) < 9 and not (constraint.is_complete or constraint.is_broken):
            [allowed] = constraint.allowed(())
            ids = [allowed] if isinstance(allowed, int) else [id for id in range(2) if allowed and allowed[0] >> id & 1]
            if not ids:
                break
            found.append(ids[0])
            constraint.follow(found)
        assert found == output
        assert (constraint.is_complete, constraint.is_broken) == (ends == "complete", ends == "broken")


def test_a_vocabulary_that_cannot_spell_the_first_character() -> None:
    grammars = VocabularyGrammars.of_tokens([b"a", b"b"], lambda text: [0] * len(text))
    with pytest.raises(ValueError, match="cannot be compiled"):
        CompiledGrammars(grammars).constraint(SamplingParams(max_tokens=9, grammar='start: "c"'))


def test_a_draft_behind_which_no_token_goes_on_ends_no_answer() -> None:
    """The vocabulary cannot write the c behind the draft, and the other word is what is sampled."""
    grammars = VocabularyGrammars.of_tokens([b"a", b"b"], lambda text: [max(0, min(1, byte - 97)) for byte in text])
    constraint = CompiledGrammars(grammars).constraint(SamplingParams(max_tokens=9, grammar='start: "ac" | "bb"'))
    assert constraint is not None
    plain = constraint.allowed(())
    assert constraint.admissible((0,)) == 1
    assert constraint.allowed((0,)) == [*plain, bytes(len(plain[0]))], "behind the draft nothing"  # type: ignore[arg-type]
    constraint.follow([1])
    assert not constraint.is_broken and constraint.certain() == (1,)


def test_a_mask_allows_what_the_rest_of_a_string_has_room_for() -> None:
    """At each place exactly the tokens that fit, whatever masks are made of."""
    for most in [1, 2, 3, 4, 5, 7, 11]:
        grammar = Grammar.of_json_schema({"type": "string", "maxLength": most}, FIELD)
        grammars = vocabulary()
        for length in range(most + 1):
            matcher = grammars.compile(grammar.text)
            assert matcher.consume_tokens(encode(b'"' + b"x" * length))
            mask = matcher.compute_bitmask()
            allowed = {id for id in range(len(TOKENS)) if mask[id >> 3] >> (id & 7) & 1}
            assert allowed == {id for id in range(len(TOKENS)) if matcher.validate_tokens([id]) == 1}
            whole = {id for id, each in enumerate(TOKENS) if each.isascii() and each.decode().isalpha()}
            assert allowed & whole == {id for id in whole if length + len(TOKENS[id]) <= most}
