"""The demo model's corpus: the same from the same seed, nothing held out in it, rendered as the chat template does."""

import json
import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from models.demo import wording
from models.demo.dialogue import Dialogue, Message
from models.demo.grammar import dialogue
from models.demo.lexicon import Split, split_of
from models.demo.recall import CELLS, cases, is_right
from models.demo.speech import FILLERS, WORDINGS, Fact, Speech, answer
from models.demo.wording import options
from recipe.encoding import encode, pieces

WEIGHTS = Path(__file__).parents[2] / "models" / "demo" / "weights"
CONTROL = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


@cache
def corpus() -> tuple[Dialogue, ...]:
    return tuple(dialogue(number) for number in range(2000))


def texts(made: Dialogue) -> list[str]:
    return [m["content"] for m in made.messages] + [document["text"] for document in made.documents]


def held_out() -> list[str]:
    """Every held-out wording."""
    tables = [
        text for words in WORDINGS.values() for each in words.values() for text in (each.nouns, each.tells, each.asks)
    ]
    for each in FILLERS.values():
        tables += [
            each.tell_frames,
            each.ask_frames,
            each.corrections,
            each.openings,
            each.closers,
            each.json,
            each.orders,
        ]
    return [held for table in tables for held in options(table, "test")]


def render(messages: Sequence[Message], documents: Sequence[dict[str, str]] = (), prompt: bool = False) -> str:
    """The chat template as transformers runs it."""

    def refuse(reason: str) -> None:
        raise jinja2.TemplateError(reason)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    template = environment.from_string((WEIGHTS / "chat_template.jinja").read_text(encoding="utf-8"))
    return template.render(messages=messages, documents=documents, add_generation_prompt=prompt, **CONTROL)


def test_same_seed_same_dialogue() -> None:
    assert dialogue(7) == dialogue(7)
    assert dialogue(7) != dialogue(8)
    assert cases(3, per_cell=1) == cases(3, per_cell=1)


def test_no_held_out_value_in_training() -> None:
    assert {split_of(value) for made in corpus() for value in made.values} == {"train"}


def test_every_tested_value_is_held_out() -> None:
    assert {split_of(value) for case in cases(1, per_cell=4) for value in (case.expected, *case.others)} == {"test"}


def test_no_held_out_wording_is_picked_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    splits: list[Split] = []

    def record(text: str, split: Split) -> list[str]:
        splits.append(split)
        return options(text, split)

    monkeypatch.setattr(wording, "options", record)
    for number in range(2000):
        dialogue(number)
    assert set(splits) == {"train"}


def test_no_held_out_wording_occurs_in_training() -> None:
    everything = "\n".join(text for made in corpus() for text in texts(made)).lower()
    fixed = [held for held in held_out() if "{" not in held]
    assert len(fixed) > 100
    assert [held for held in fixed if held.lower() in everything] == []


def test_held_out_wordings_are_new_orders_of_known_words() -> None:
    """A small model cannot know a word that it never saw: what is held out is the sentence, hardly ever its words."""
    for lang, word in (("en", r"[A-Za-z']+"), ("ko", "[가-힣]+")):
        known = {found for made in corpus() for text in texts(made) for found in re.findall(word, text.lower())}
        held = [re.sub(r"\{.\}\S*|\([^)]*\)", " ", text) for text in held_out()]
        words = [found for text in held for found in re.findall(word, text.lower())]
        assert len([each for each in words if each not in known]) < 0.02 * len(words), lang


def test_a_dish_and_its_quantity_may_share_a_sentence() -> None:
    facts = [Fact("dish", "Honey Pork Box"), Fact("quantity", "3"), Fact("drink", "iced cola")]
    said = {tuple(Speech(random.Random(seed)).statements(facts, "en")) for seed in range(40)}
    assert {len(each) for each in said} == {2, 3}
    for each in said:
        assert all(sum(fact.value in sentence for sentence in each) == 1 for fact in facts)


def test_korean_number_words_stand_apart_from_their_counter() -> None:
    assert answer(Fact("quantity", "두"), "ko") == "모두 두 개예요."
    assert answer(Fact("quantity", "3"), "ko") == "모두 3개예요."


def test_words_are_split_beside_values_only() -> None:
    text = "안녕하세요, my order is the Honey Pork Box and 제육 도시락입니다"
    kept = {"Honey", "Pork", "Box", "제육", "도시락"}
    parts = [pieces(text, kept, random.Random(seed)) for seed in range(300)]
    assert all("".join(each) == text for each in parts)
    assert any(len(each) > 1 for each in parts)
    for value in kept:
        assert all(any(value in part for part in each) for each in parts)


def test_answers_hold_their_value() -> None:
    for made in corpus()[:300]:
        for entry in made.answers:
            assert (entry.fact.value in made.messages[entry.index]["content"]) == entry.in_window


def test_template_is_stable_under_more_turns() -> None:
    made = next(made for made in corpus() if made.documents and made.messages[0]["role"] == "system")
    whole = render(made.messages, made.documents)
    for count in range(1, len(made.messages)):
        prefix = render(made.messages[:count], made.documents)
        assert whole.startswith(prefix) and prefix.endswith("<|end|>")
    assert render(made.messages, made.documents, prompt=True) == whole + "<|assistant|>"


def test_template_places_documents_after_the_system_prompt() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    documents = [{"title": "T", "text": "D"}, {"text": "E"}]
    body = "<|documents|>T\nD<|end|><|documents|>E<|end|><|user|>U<|end|>"
    assert render(messages, documents) == "<|begin|><|system|>S<|end|>" + body
    assert render(messages[1:], documents) == "<|begin|>" + body


def test_template_refuses_other_roles() -> None:
    with pytest.raises(jinja2.TemplateError, match="Unknown role"):
        render([{"role": "tool", "content": "x"}])


def test_training_rows_are_what_the_template_renders() -> None:
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    for made in corpus()[:30]:
        ids = tokenizer.encode(render(made.messages, made.documents), add_special_tokens=False).ids
        assert encode(made, tokenizer).token_ids == ids[:2048]


def test_tokenizer_spells_any_text() -> None:
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    text = "뷁! Żółw 7,250원 <3\n\tこ"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_right_answers_hold_the_whole_value_and_no_other() -> None:
    case = next(case for case in cases(1, per_cell=20) if case.kind == "quantity" and case.others)
    assert is_right(case, f"You want {case.expected} boxes.")
    assert not is_right(case, f"You want {case.expected}0 boxes.")
    assert not is_right(case, f"You want {case.expected} or {case.others[0]} boxes.")


def test_every_cell_has_cases_in_both_wordings() -> None:
    made = cases(1, per_cell=2)
    assert {(case.cell, case.wording) for case in made} == {
        (cell, split) for cell in CELLS for split in ("train", "test")
    }
    assert json.dumps(made[0].messages, ensure_ascii=False)
