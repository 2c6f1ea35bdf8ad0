"""A foreign tokenizer that makes endless texts, or takes endless time, is refused; a published one is not."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any, Final

import pytest
from tokenizers import Tokenizer

from models.errors import InvalidSource
from models.imports import text_trial, tokenizer_bounds
from models.imports.gguf_splits import SPLITS

Step = dict[str, Any]


def replaced(content: str, **pattern: str) -> Step:
    return {"type": "Replace", "pattern": pattern, "content": content}


def charsmap(*texts: str) -> Step:
    """sentencepiece's map of an empty tree."""
    content = struct.pack("<I", 1024) + b"\0" * 1024 + "\0".join(texts).encode()
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def split(expression: str) -> Step:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def tokenizer(normalizers: tuple[Step, ...] = (), pretokenizers: tuple[Step, ...] = ()) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": {"q": 0, "a": 1}, "merges": [], "fuse_unk": False, "byte_fallback": False}
    rest: dict[str, Any] = {"version": "1.0", "added_tokens": [], "post_processor": None, "decoder": None}
    return rest | {
        "normalizer": {"type": "Sequence", "normalizers": list(normalizers)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(pretokenizers)},
        "model": model | {"dropout": None, "unk_token": None},
    }


PREPEND: Final = {"type": "Prepend", "prepend": "▁"}
ACCENTS: Final[tuple[Step, ...]] = ({"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"})
QUOTES: Final = (replaced('"', String="``"), replaced('"', String="''"))
NFKC: Final = charsmap("a", "صلى الله عليه وسلم")
HONEST: Final = {
    "Llama 2": (PREPEND, replaced("▁", String=" ")),
    "Gemma": (replaced("▁", String=" "),),
    "BERT": ({"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True},),
    "ALBERT and XLNet": (*QUOTES, *ACCENTS, NFKC, replaced(" ", Regex=" {2,}")),
    "T5 and XLM-R": (NFKC, {"type": "Strip"}, replaced("▁", Regex=" {2,}")),
    "CLIP": ({"type": "NFC"}, replaced(" ", Regex=r"\s+"), {"type": "Lowercase"}),
    "a map behind a prefix": (PREPEND, NFKC, replaced(" ", Regex=r"[\n\t]"), replaced("▁", Regex=" {2,}")),
    "signs": tuple(replaced(sign, Regex=f"[{odd}]") for sign, odd in zip("\"'-. ,:;", "“‘–…\u3000、：；", strict=True)),
    "what is left out": tuple(replaced("", Regex=each) for each in (r"\p{Mn}", r"(?<=\s)\s+", r"\x00")) * 4,
}


@pytest.mark.parametrize("kind", HONEST)
def test_the_steps_of_published_tokenizers_are_accepted(kind: str) -> None:
    tokenizer_bounds.refuse(tokenizer(normalizers=HONEST[kind]))


def doubled(**pattern: str) -> tuple[Step, ...]:
    return (replaced("qq" if pattern.get("String") else "q", **pattern),) * 12


GROWING: Final = {
    "a match without a character": doubled(Regex=r"(?=\x71)"),
    "a match that keeps nothing": doubled(Regex=r"q\K"),
    "an item that may be left out": doubled(Regex="q{0,}"),
    "a repetition that may be left out": doubled(Regex="q{1}?"),
    "an empty text": doubled(String=""),
    "a map of no texts": (charsmap(), *doubled(String="q")),
    "a map without a tree": ({"type": "Precompiled", "precompiled_charsmap": ""}, *doubled(String="q")),
}


@pytest.mark.parametrize("kind", GROWING)
@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_text_that_grows_by_every_step_is_refused(kind: str, part: str) -> None:
    steps = [step for step in GROWING[kind] if part == "normalizer" or step["type"] == "Replace"]
    told = tokenizer() | {part: {"type": "Sequence", f"{part}s": steps}}
    with pytest.raises(ValueError, match=rf"makes up to 4,096 characters of one in its {part}"):
        tokenizer_bounds.refuse(told)


SLOW: Final = {
    "two classes": r"((?:[q][7])+)+!",
    "three classes": r"((?:[q][7][z])+)+!",
    "codes of characters": r"((?:\x{71}\u0037)+)+!",
    "one class": r"((?:[q7]{2})+)+!",
}


@pytest.mark.parametrize("kind", SLOW)
def test_an_expression_that_never_ends_over_what_it_names_is_refused(tmp_path: Path, kind: str) -> None:
    content = tokenizer(pretokenizers=(split(SLOW[kind]),))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InvalidSource, match=r"fails on a text|takes too long"):
        text_trial.require_usable(tmp_path)


@pytest.mark.parametrize("name", {expressions: name for name, expressions in SPLITS.items()}.values())
def test_the_expressions_of_published_tokenizers_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some repeat what has repeats, as `exaone-moe` does."""
    monkeypatch.setattr("models.checkpoint.limited.at", lambda *_: None)
    content = tokenizer(pretokenizers=tuple(map(split, SPLITS[name])))
    tokenizer_bounds.refuse(content)
    assert text_trial._used(Tokenizer.from_str(json.dumps(content)), content) == ""


def test_what_steps_look_for_and_put_is_tried() -> None:
    content = tokenizer(normalizers=(replaced("zz", String="yy"), replaced("", Regex=r"\x71\u0037\x{1F642}\uD800")))
    tried = "".join(text for text, _ in text_trial._texts(tokenizer_bounds.patterns(content), ["yy", "zz"]))
    assert tokenizer_bounds.texts(content) == ["yy", "zz"]
    assert all(unit * 24 in tried for unit in ("yy", "zz", "q7", "7q", "q🙂", r"\u"))
