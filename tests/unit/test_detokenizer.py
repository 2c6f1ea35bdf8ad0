"""Stop strings and character boundaries, on hand-made streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from service.text.detokenizer import HIDDEN, Detokenizer
from service.text.streams import ByteStream, LocalStream, TextStream


class Bytes:
    """Token i is the i-th of the given byte strings."""

    def __init__(self, *tokens: bytes) -> None:
        self.tokens = tokens

    def text_stream(
        self, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset(), inside: bool = False
    ) -> TextStream:
        return ByteStream(lambda id: self.tokens[id])


def texts(*tokens: str) -> Bytes:
    return Bytes(*(token.encode() for token in tokens))


def run(
    tokenizer: Bytes, stop: tuple[str, ...] = (), include_stop: bool = False, ignore_stop_until: int = 0
) -> tuple[list[str], bool]:
    """The deltas of all tokens, the finish last; whether it stopped."""
    detokenizer = Detokenizer(tokenizer, stop, include_stop, ignore_stop_until)
    deltas = [detokenizer.push(id) for id in range(len(tokenizer.tokens))]
    deltas.append(detokenizer.finish())
    assert detokenizer.text == "".join(deltas)
    return deltas, detokenizer.stopped


def test_a_character_comes_whole() -> None:
    assert run(Bytes(b"\xec", b"\x95", b"\x88", b"!")) == (["", "", "안", "!", ""], False)


def test_a_text_ends_before_an_unfinished_character() -> None:
    assert run(Bytes(b"a", b"\xf0\x9f\x98")) == (["a", "", ""], False)
    assert run(Bytes(b"a\xec", b"\x95")) == (["a", "", ""], False)
    assert run(Bytes(b"a", b"\xff")) == (["a", "\ufffd", ""], False), "which begins nothing"


def test_half_of_a_surrogate_begins_no_character() -> None:
    """Python's decoder holds it all the same, until the next byte."""
    assert run(Bytes(b"a", b"\xed\xa0")) == (["a", "", "\ufffd\ufffd"], False)
    assert run(Bytes(b"\xed", b"\xbf", b"b")) == (["", "", "\ufffd\ufffdb", ""], False)


def test_an_invalid_byte_is_shown_as_soon_as_it_is_certain() -> None:
    assert run(Bytes(b"\xec", b"a")) == (["", "\ufffda", ""], False)


def test_without_stop_strings_nothing_is_held() -> None:
    assert run(texts("<", "|", "end")) == (["<", "|", "end", ""], False)


def test_a_stop_string_over_many_tokens_is_cut_out() -> None:
    assert run(texts("hi ", "EN", "D", " more"), ("END",)) == (["hi ", "", "", "", ""], True)


def test_a_stop_string_may_be_asked_for() -> None:
    assert run(texts("hi ", "EN", "D more"), ("END",), include_stop=True) == (["hi ", "", "END", ""], True)


def test_a_false_start_is_given_out() -> None:
    assert run(texts("E", "N", "E", "ND"), ("END",)) == (["", "", "EN", "", ""], True)
    assert run(texts("E", "N"), ("END",)) == (["", "", "EN"], False)


def test_a_start_inside_a_false_start_is_kept() -> None:
    assert run(texts("aa", "a", "b"), ("aab",)) == (["", "a", "", ""], True)


@pytest.mark.parametrize("stop", [("cd", "abcdef"), ("abcdef", "cd")])
def test_the_stop_string_completed_first_wins_however_tokens_cut(stop: tuple[str, ...]) -> None:
    assert run(texts("xabcdef"), stop) == (["xab", ""], True)
    assert "".join(run(texts(*"xabcdef"), stop)[0]) == "xab"


def test_of_two_completed_together_the_longer_is_cut() -> None:
    assert run(texts("xab"), ("b", "ab")) == (["x", ""], True)


def test_stop_strings_wait_for_the_first_tokens() -> None:
    assert run(texts("a.", "b.", "c."), (".",), ignore_stop_until=2) == (["a.", "b.", "c", ""], True)


def test_an_ignored_completion_that_is_still_held_does_not_count() -> None:
    assert run(texts("a.", "b"), (".", ".x"), ignore_stop_until=1) == (["a", ".b", ""], False)


def test_a_stop_string_begun_by_ignored_tokens_counts_when_completed_later() -> None:
    assert run(texts("xE", "N", "D"), ("END",), ignore_stop_until=2) == (["x", "", "", ""], True)


def test_an_empty_stop_string_stops_nothing() -> None:
    assert run(texts("a", "b"), ("",)) == (["a", "b", ""], False)


def test_a_multibyte_stop_string_split_inside_a_character() -> None:
    cut = "끝!".encode()
    assert run(Bytes(b"a", cut[:2], cut[2:4], b"b"), ("끝!",)) == (["a", "", "", "", ""], True)


def test_nothing_comes_after_the_end() -> None:
    detokenizer = Detokenizer(texts("a", "b"))
    detokenizer.push(0)
    assert (detokenizer.finish(), detokenizer.finish()) == ("", "")


def fallback(ids: list[int]) -> str:
    """A stand-in for SentencePiece's byte fallback: an invalid run is U+FFFD per byte."""
    text, run = "", bytearray()
    for id in [*ids, -1]:
        if 0 <= id < 256:
            run.append(id)
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        run.clear()
        text += "" if id == -1 else chr(id)
    return text


class Fallback:
    def text_stream(
        self, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset(), inside: bool = False
    ) -> TextStream:
        return LocalStream(lambda ids: fallback(list(ids)), lambda id: id if id < 256 else None)


def test_a_stop_string_of_byte_tokens_stops_before_their_run_has_ended() -> None:
    detokenizer = Detokenizer(Fallback(), ("\n",))
    assert [detokenizer.push(id) for id in (ord("가"), 0x0A)] == ["가", ""]
    assert detokenizer.stopped


def test_a_stop_string_that_ignored_byte_tokens_complete_does_not_count() -> None:
    """Also where it is certain only when their run has ended."""
    detokenizer = Detokenizer(Fallback(), ("\n",), ignore_stop_until=2)
    assert "".join(detokenizer.push(id) for id in (ord("가"), 0x0A, ord("나"))) == "가\n나"
    assert not detokenizer.stopped


def test_a_run_of_byte_tokens_ends_before_an_unfinished_character() -> None:
    detokenizer = Detokenizer(Fallback())
    deltas = [detokenizer.push(id) for id in (ord("가"), *"나".encode(), *"다".encode()[:2])]
    assert ["".join(deltas), detokenizer.finish()] == ["가", "나"]


@pytest.mark.parametrize("ignored", [0, 4000])
def test_a_long_run_of_byte_tokens_is_not_decoded_again_and_again(ignored: int) -> None:
    decoded = 0

    def counted(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return fallback(list(ids))

    class Counting:
        def text_stream(self, *_: object, **__: object) -> TextStream:
            return LocalStream(counted, lambda id: id if id < 256 else None)

    detokenizer = Detokenizer(Counting(), ("zzz", "나다"), ignore_stop_until=ignored)
    run = "가나".encode() * 1000
    assert "".join(map(detokenizer.push, (ord("가"), *run, 0x7A, 0x7A))) == "가" and not detokenizer.stopped
    assert detokenizer.push(0x7A) == "가나" * 1000 and detokenizer.stop_string == "zzz"
    assert decoded < 8 * len(run)


def test_a_run_that_turns_invalid_was_not_given_out() -> None:
    detokenizer = Detokenizer(Fallback())
    deltas = [detokenizer.push(id) for id in (ord("가"), 0x41, 0xFF, ord("나"))]
    assert deltas == ["가", "", "", "\ufffd\ufffd나"]


class Late:
    """Knows at the end that all of it was content."""

    is_content, is_undecided, seen = False, True, ""

    def searched(self, text: str, is_last: bool = False) -> str:
        self.seen += text
        return self.seen if is_last else ""


def test_a_content_that_is_known_at_the_end_is_cut_at_its_stop_string() -> None:
    detokenizer = Detokenizer(texts("one ", "STOP", " two"), ("STOP",), boundary=Late())
    assert [detokenizer.push(id) for id in range(3)] == ["", "", ""]
    assert (detokenizer.finish(), detokenizer.stop_string) == ("one ", "STOP")


class Bar:
    """Content stands between two bars."""

    is_content, is_undecided = False, False

    def searched(self, text: str, is_last: bool = False) -> str:
        return "".join(map(self._searched, text))

    def _searched(self, character: str) -> str:
        self.is_content ^= character == "|"
        return character if self.is_content else HIDDEN


def test_a_stop_string_before_the_content_ends_nothing() -> None:
    detokenizer = Detokenizer(texts("STOP", "|", "a", "STOP"), ("STOP",), boundary=Bar())
    assert "".join(detokenizer.push(id) for id in range(4)) == "STOP|a"
    assert detokenizer.stop_string == "STOP"


def test_a_stop_string_is_searched_in_each_part_of_the_content_alone() -> None:
    detokenizer = Detokenizer(texts("|ST", "|OP", "STOP", "|OP ", "STOP", "|"), ("STOP",), boundary=Bar())
    assert "".join(detokenizer.push(id) for id in range(6)) == "|ST|OPSTOP|OP "
    assert detokenizer.stop_string == "STOP"


CONTROL = "<|call|>"


@pytest.mark.parametrize(
    ("tokens", "more", "given"),
    [
        (("a", "", "b"), {}, "a"),
        (("a", "", "b"), {"include_stop": True}, f"a{CONTROL}"),
        (("a", "", "b"), {"ignore_stop_until": 2}, "ab"),
        (("a E", "", "b"), {"stop": ("END", CONTROL)}, "a E"),
        (("a\xff", "", "b"), {}, "a\xff"),
        (("a", "", "b"), {"boundary": Bar()}, "ab"),
        (("a|c", "", "b"), {"boundary": Bar()}, "a|c"),
        (("a", "", "b"), {"boundary": Late()}, "a"),
        (("a", CONTROL, "b"), {"skip_special_tokens": False}, "a"),
        (("a", CONTROL, "b"), {"shown": frozenset({1}), "include_stop": True}, f"a{CONTROL}"),
    ],
)
def test_a_stop_string_that_is_a_control_token_ends_at_the_token(
    tokens: tuple[str, ...], more: dict[str, Any], given: str
) -> None:
    """Such a token, the second here, has no text of its own, unless it is shown."""
    detokenizer = Detokenizer(texts(*tokens), **{"stop": (CONTROL,), "controls": {1: CONTROL}, **more})
    assert "".join([*map(detokenizer.push, range(3)), detokenizer.finish()]) == given
    assert detokenizer.stop_string == (None if given == "ab" else CONTROL)
