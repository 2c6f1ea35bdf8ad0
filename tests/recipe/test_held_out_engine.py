"""Held-out dialogues through the engine: the model's own answers stand in the history of the next turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from models.imports.starter import WEIGHTS
from recipe import dialogues as command
from recipe.dialogues import converse, measured
from recipe.held_out.dialogues import Document, HeldOut, Turn
from service.engine.process.core import EngineCore
from service.text.messages import Message
from service.text.tokenizer import Tokenizer

LONG = HeldOut("a", "en", "plain", [Turn("one"), Turn("two")], "a shop", [Document("closed on Monday", "Notice")])
SHORT = HeldOut("b", "en", "plain", [Turn("only")])


class Rendering:
    """A tokenizer that keeps what it was asked to render."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], int]] = []

    def render_chat(self, messages: Sequence[Message], documents: Sequence[object]) -> list[int]:
        self.seen.append(([str(each.content) for each in messages], len(documents)))
        return [len(self.seen)]


def test_each_turn_sees_the_answers_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(core: EngineCore, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]]) -> list[str]:
        return [f"answer {ids[0]}" for ids in prompts]

    monkeypatch.setattr(command, "_answers", given)
    rendering = Rendering()
    texts = converse(cast(EngineCore, None), cast(Tokenizer, rendering), [LONG, SHORT])
    assert texts == [["answer 1", "answer 3"], ["answer 2"]]
    assert rendering.seen == [
        (["a shop", "one"], 1),
        (["only"], 0),
        (["a shop", "one", "answer 1", "two"], 1),
    ]


def test_the_shipped_weights_answer_through_the_engine() -> None:
    spoken = HeldOut("c", "en", "plain", [Turn("My name is Wendy."), Turn("What is my name?")])
    (found,) = measured(WEIGHTS, [spoken], int8=False).values()
    assert [each.turn for each in found] == [1, 2]
    assert "Wendy" in found[1].text
