"""Held-out dialogues: what counts as right, wrong and garbage, and that answers are counted where they belong."""

import json
from pathlib import Path

import pytest

from recipe.held_out.checks import holds, is_garbage, is_right, language_of
from recipe.held_out.dialogues import Asks, HeldOut, read
from recipe.held_out.results import answered, markdown, table, transcript

LINE = {
    "id": "en-1",
    "language": "en",
    "style": "plain",
    "system": "Open from ten.",
    "turns": [
        {"user": "Two salmon boxes, I'm Ben."},
        {"user": "My name?", "asks": {"kind": "name", "source": "chat", "told": 1, "right": ["Ben"], "wrong": []}},
        {"user": "A joke?", "asks": {"kind": "off_topic"}},
    ],
}


@pytest.mark.parametrize(
    ("answer", "value", "is_held"),
    [
        ("합계 17,000원이에요.", "17000", True),
        ("합계 17,000원이에요.", "7000", False),
        ("합계 17,000원이에요.", "17", False),
        ("That is $22.50 in all.", "22", False),
        ("That is $22 in all.", "22", True),
        ("12시 반에 준비해 둘게요.", "12시반", True),
        ("You ordered 14 boxes.", "4", False),
        ("You ordered 4 boxes.", "4", True),
        ("It is often late.", "ten", False),
        ("It is BARLEY tea.", "barleytea", True),
    ],
)
def test_a_value_is_held_whole(answer: str, value: str, is_held: bool) -> None:
    assert holds(answer, value) == is_held


@pytest.mark.parametrize(
    "text", ["", "에요요요요요요요", "Your budget is", "네, 두", "hahahahahahaha.", "이\ufffd로 1층이에요."]
)
def test_garbage(text: str) -> None:
    assert is_garbage(text)


@pytest.mark.parametrize(
    "text", ["네, 두 개예요.", "Hello! How can I help you?", '{"name": "Ben"}', "모두 20,000원이에요."]
)
def test_no_garbage(text: str) -> None:
    assert not is_garbage(text)


def test_a_fact_is_right_with_every_item_and_nothing_wrong() -> None:
    asks = Asks("change", "chat", 2, ["제육", ["3", "세 개"]], ["돈까스"])
    assert is_right(asks, "제 주문이 뭐죠?", "제육 도시락 세 개예요.")
    assert not is_right(asks, "제 주문이 뭐죠?", "제육 도시락 2개예요.")
    assert not is_right(asks, "제 주문이 뭐죠?", "돈까스 1개, 제육 3개예요.")
    assert not is_right(asks, "제 주문이 뭐죠?", "제육 도시락 3개")


def test_talk_is_right_in_the_language_of_its_question() -> None:
    assert is_right(Asks("greeting"), "안녕하세요", "안녕하세요! 무엇을 도와드릴까요?")
    assert not is_right(Asks("greeting"), "안녕하세요", "Hello! How can I help you?")
    assert is_right(Asks("language"), "Do you speak English?", "Yes, I can help you in English and in Korean.")
    assert language_of("The 돈까스 도시락 is 8,500 won.") == "en"
    assert language_of("You ordered 돈까스 도시락 2.") == "en"
    assert language_of("Bibimbap 2개 주문하셨어요.") == "ko"


def test_refusals_and_missing_facts_by_their_phrases() -> None:
    refusal = "죄송하지만 저는 도시락 주문과 가게 안내만 도와드릴 수 있어요."
    assert is_right(Asks("off_topic"), "날씨 어때?", refusal)
    assert not is_right(Asks("off_topic"), "날씨 어때?", "맑아요.")
    assert is_right(Asks("not_told"), "What's my name?", "You have not told me your name yet.")
    assert not is_right(Asks("not_told"), "What's my name?", "Your name is Ben.")


def test_a_line_that_is_no_dialogue_is_named(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps(LINE) + "\n\n" + json.dumps({**LINE, "style": "odd"}) + "\n")
    with pytest.raises(ValueError, match=r"some\.jsonl line 3"):
        read(path)


def test_answers_are_counted_by_goal_and_group(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    dialogues: list[HeldOut] = read(path)
    made = answered(dialogues, [["Okay.", "Your name is Ben.", "Why did the rice"]])
    counts = {count.group: (count.right, count.asked) for count in table(made)}
    assert counts["plain facts of the chat"] == (1, 1)
    assert counts["off topic, refused"] == (0, 1)
    assert counts["every answer: no garbage"] == (2, 3)
    assert counts["distance: 1 turns"] == (1, 1)
    assert "| plain facts of the chat | 100.0% (1/1) |" in markdown({"bf16": table(made)})
    assert "- shop: Your name is Ben. (name: right)" in transcript(made)
