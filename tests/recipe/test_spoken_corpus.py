"""The spoken corpus: the same from the same seed, every line readable, every reply what the chat makes right."""

import random
import re
from functools import cache

import pytest

from models.demo.dialogue import Dialogue
from models.demo.lexicon import Lang, split_of
from recipe.held_out.checks import NOT_TOLD, REFUSALS
from recipe.spoken import lines, noise, orders, places, speech, values
from recipe.spoken.chat import chat
from recipe.spoken.customer import Customer
from recipe.spoken.desk import Desk
from recipe.spoken.invented import common, invented
from recipe.spoken.money import Currency
from recipe.spoken.orders import Item
from recipe.spoken.raw import passage
from recipe.spoken.shop import Shop, shop
from recipe.spoken.words import syllables

LANGUAGES: tuple[Lang, Lang] = ("ko", "en")
PRODUCT = re.compile(r"(\d+) × \$?₩?([\d,.]+)\D*= \$?₩?([\d,]+(?:\.\d+)?)")


@cache
def chats() -> tuple[Dialogue, ...]:
    return tuple(chat(number) for number in range(1500))


def desk(lang: Lang = "en", **facts: str) -> Desk:
    return Desk(random.Random(0), Shop(lang, Currency("$"), facts, {"Salmon Box": 950, "Cola": 200}))


def test_same_seed_same_chat() -> None:
    assert chat(7) == chat(7)
    assert chat(7) != chat(8)
    assert passage(7) == passage(7)


def test_both_languages_have_the_same_sections() -> None:
    assert lines.sections("ko").keys() == lines.sections("en").keys()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_line_is_drawn_without_its_marks(lang: Lang) -> None:
    rng = random.Random(1)
    for key in lines.sections(lang):
        for _ in range(20):
            assert not re.search(r"[\[\]<>|]", lines.pick(rng, key, lang).replace("[메뉴]", "")), key


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_kind_is_told_and_asked_in_hundreds_of_ways(lang: Lang) -> None:
    rng = random.Random(2)
    for kind in ("name", "time", "phone", "address", "budget", "drink", "allergy", "dislike", "order", "total"):
        for aspect in ("ask",) if kind == "total" else ("tell", "ask"):
            assert len({lines.pick(rng, f"{kind}.{aspect}", lang) for _ in range(1500)}) > 150, f"{kind}.{aspect}"


def test_no_mark_is_left_in_a_chat() -> None:
    for made in chats():
        for text in [m["content"] for m in made.messages] + [document["text"] for document in made.documents]:
            assert not re.search(r"\{\w+\}|[\ue000\ue001]|\((은|이|을|으|과)/", text), text


def test_many_chats_begin_with_a_question_to_a_shop_without_prompt() -> None:
    """The first thing that a newcomer types. Without such chats the answer was one word, repeated."""
    absent = re.compile("안내받지 못했어요|Sorry, I do not know the ")
    unstated = [
        made
        for made in chats()
        if made.messages[0]["role"] == "user" and not made.documents and absent.search(made.messages[1]["content"])
    ]
    assert len(unstated) > len(chats()) * 0.04


def test_replies_hold_what_is_right() -> None:
    for made in chats():
        for entry in made.answers:
            assert entry.fact.value in made.messages[entry.index]["content"]


def test_values_of_open_kinds_are_never_held_out_ones() -> None:
    rng, money = random.Random(3), Currency("원")
    for kind in ("name", "phone", "address", "shop", "wifi"):
        for lang in LANGUAGES:
            assert {split_of(values.value(rng, kind, lang, money)) for _ in range(200)} == {"train"}


def test_an_invented_word_is_of_any_syllable() -> None:
    rng, known = random.Random(4), set(syllables())
    korean = [invented(rng, "ko") for _ in range(300)]
    assert len(common()) == 2350 and known <= set(common())
    assert 0.3 < sum(not set(word) <= known for word in korean) / 300 < 0.7
    assert all(re.fullmatch("[a-z]+", invented(rng, "en")) for _ in range(300))


@pytest.mark.parametrize("kind", ["name", "special", "drink", "allergy", "dislike", "shop", "address"])
def test_values_of_open_kinds_may_be_invented(kind: str) -> None:
    rng, known = random.Random(5), set(syllables())
    made = "".join(values.value(rng, kind, "ko", Currency("원")) for _ in range(300))
    assert sum("가" <= char <= "힣" and char not in known for char in made) > 20


def test_a_value_comes_also_where_each_holds_a_known_one() -> None:
    made = desk()
    made.values = {"pe"}
    assert "people" in Customer(random.Random(0), made, "en").value("people")


def test_products_and_sums_are_right() -> None:
    found = 0
    for made in chats():
        for message in made.messages:
            if message["role"] != "assistant" or " × " not in message["content"]:
                continue
            parts = PRODUCT.findall(message["content"])
            assert parts, message["content"]
            for count, unit, part in parts:
                found += 1
                assert round(int(count) * number(unit) * 100) == round(number(part) * 100), message["content"]
    assert found > 50


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_the_sum_of_two_dishes_and_the_fee() -> None:
    items = [Item("salmon box", 2), Item("cola", 1)]
    prices = {"salmon box": 950, "cola": 200}
    text = orders.total(items, prices, Currency("$"), "en", 300)
    assert text == "salmon box 2 × $9.50 = $19, cola 1 × $2 = $2, delivery $3, $24 in all."
    assert orders.total(items[:1], {"salmon box": 8500}, Currency("원"), "ko") == "2 × 8,500원 = 17,000원(이에/예)요."


def test_the_newest_order_counts() -> None:
    made = desk()
    made.items = [Item("salmon box", 2)]
    made.heard("two salmon boxes", {"order": "two salmon boxes"}, "en")
    made.changed("make it three", orders.changed(made.items, 0, 3), "en")
    made.order("what did I order?", "en")
    replies = [message["content"] for message in made.messages if message["role"] == "assistant"]
    assert "2 salmon boxes" in replies[0] and "3 salmon boxes" in replies[1] and "3 salmon boxes" in replies[2]


def test_what_was_never_told_is_said_to_be_missing() -> None:
    made = desk()
    made.recall("what's my name?", "name", "en")
    made.state("주차돼요?", "parking", "ko")
    made.total("how much?", "en")
    for index, lang in ((1, "en"), (3, "ko"), (5, "en")):
        assert any(phrase in made.messages[index]["content"] for phrase in NOT_TOLD[lang])  # type: ignore[index]


def test_off_topic_questions_get_the_sentence_that_the_checks_know() -> None:
    for lang in LANGUAGES:
        assert REFUSALS[lang] in lines.first("off_topic.reply", lang)
        for key in ("other.untold", "detail.absent", "untold", "absent", "order.none", "total.unpriced"):
            text = lines.first(key, lang)
            assert any(phrase in text for phrase in NOT_TOLD[lang]), text


def test_typing_leaves_values_whole() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        text = speech.filled("please write {name} on the bag, would you", {"name": "Ottoline Grey"})
        assert "Ottoline Grey" in noise.typed(rng, text, "en")


def test_particles_follow_the_value() -> None:
    assert noise.typed(random.Random(1), speech.filled("{name}(이에/예)요", {"name": "김하린"}), "ko").startswith(
        "김하린이에"
    )
    assert places.phone(random.Random(1), "ko")


def test_a_shop_is_written_with_all_its_facts() -> None:
    for seed in range(300):
        made = shop(random.Random(seed), LANGUAGES[seed % 2], silent=0.1)
        written = made.system + "\n".join(document["text"] for document in made.documents)
        for value in (*made.facts.values(), *made.menu):
            assert value.lower() in written.lower()
