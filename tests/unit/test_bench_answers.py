"""The page of answers: cut where the model ends, marked where the count ends, the same answers told once."""

from __future__ import annotations

from pathlib import Path

from loadtest.answers import QUESTIONS, page, said
from loadtest.bench.journal import Journal, Record
from loadtest.bench.real import systems
from loadtest.checkpoints import SMALL
from models.imports.starter import WEIGHTS
from service.text.tokenizer import Tokenizer


def test_an_answer_ends_where_the_model_ends_it() -> None:
    tokenizer = Tokenizer.load(WEIGHTS)
    words, stop = tokenizer.encode("a box", add_special_tokens=False), tokenizer.stop_token_ids[0]
    assert said(tokenizer, [*words, stop, *words]) == "a box"
    assert said(tokenizer, words) == "a box …"


def test_the_same_answer_is_told_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "figures.jsonl")
    journal.add(Record("dosirak int8", "quality", 0, {"kl": 0.0042}, "abc", "2026-01-01T00:00:00+00:00"))
    told = {name: [f"{name[0]}{at}\n```" for at in range(len(QUESTIONS))] for name in ("fp32", "file", "int8")}
    made = page(journal, systems(SMALL), told, "command")
    assert made.count("**fp32, file**") == made.count("**int8**") == len(QUESTIONS) == 10
    assert "````text\nf3\n```\n````" in made and "0.0042" in made
