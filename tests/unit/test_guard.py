"""The guard on text: every planted string is found however the text is cut, ordinary text is left alone, and no text
takes more than a number of steps bounded by its length."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from models.demo.grammar import Style, dialogue
from service.context.prompt import Text
from service.engine.protocol.messages import FinishReason, StepOutput, TokenLogprobs
from service.errors import InvalidRequest
from service.generation.guard import Grams, Guard, read_guard
from service.generation.guard.corpus import UNITS, fold
from service.generation.guard.patterns import is_resident_number, passes_luhn
from service.generation.guard.rules import LABELS
from service.generation.output_sequence import OutputSequence
from service.generation.request import GenerationRequest
from service.text.tokenizer import Tokenizer
from tests import tokenizers
from tests.effort import usual
from tests.planted import CANARIES, PROTECTED, Plant, plants

MANY = plants(1000)


def guarded(directory: Path, **actions: str) -> Guard:
    """All rules; `action` of those that are not named."""
    action = actions.pop("action", "mask")
    patterns = "\n".join(f'{name} = "{actions.get(name, action)}"' for name in list(LABELS)[:4])
    Grams.of(PROTECTED, b"salt").write(directory / "sensitive.grams")
    path = directory / "guard.toml"
    path.write_text(
        f"[patterns]\n{patterns}\n"
        f'[canaries]\naction = "{actions.get("canary", action)}"\nstrings = {CANARIES}\n'
        f'[corpus]\naction = "{actions.get("corpus", action)}"\nfile = "sensitive.grams"\n'
    )
    return read_guard(path)


@pytest.fixture(scope="module")
def masking(tmp_path_factory: pytest.TempPathFactory) -> Guard:
    return guarded(tmp_path_factory.mktemp("guard"))


def whole(guard: Guard, text: str) -> tuple[str, dict[str, int]]:
    text_filter = guard.text_filter()
    released = text_filter.push(text) + text_filter.finish()
    return released, {each.rule: each.count for each in text_filter.findings}


def in_parts(guard: Guard, parts: list[str]) -> tuple[str, dict[str, int]]:
    text_filter = guard.text_filter()
    released = "".join([*map(text_filter.push, parts), text_filter.finish()])
    return released, {each.rule: each.count for each in text_filter.findings}


def cut(text: str, rng: random.Random, longest: int = 5) -> list[str]:
    places = [0]
    while places[-1] < len(text):
        places.append(places[-1] + rng.randint(1, longest))
    return [text[start:end] for start, end in pairwise(places)]


def missed(plant: Plant, released: str, found: Collection[str]) -> bool:
    """A string may be two things at once, and then has the label of the one that begins first."""
    return plant.value in released or plant.rule not in found or not any(each in released for each in LABELS.values())


def test_a_thousand_planted_strings_cut_at_any_character(masking: Guard) -> None:
    rng = random.Random(1)
    for plant in MANY:
        released, found = in_parts(masking, cut(plant.text, rng))
        assert not missed(plant, released, found), (plant, released)
        assert (released, found) == whole(masking, plant.text), "as if it had come whole"


@cache
def tokenizer(name: str) -> Tokenizer:
    from tempfile import TemporaryDirectory

    if name == "demo":
        return Tokenizer.load(Path(tokenizers.__file__).parent.parent / "models" / "demo" / "weights")
    with TemporaryDirectory() as directory:
        return tokenizers.load(Path(directory), getattr(tokenizers, name)())


def ids_of(name: str, text: str, rng: random.Random) -> list[int]:
    """Its tokens, with borders at random where the tokenizer's parts join to the text again."""
    subject = tokenizer(name)
    if name == "llama":
        return subject.encode(text, add_special_tokens=False)
    return [id for part in cut(text, rng, 9) for id in subject.encode(part, add_special_tokens=False)]


def decoded(name: str, ids: list[int], guard: Guard, rng: random.Random, stop: tuple[str, ...] = ()) -> OutputSequence:
    """The ids as an engine gives them, a few a step, each with the tokens after it as alternatives."""
    sequence = OutputSequence(
        0, 0, GenerationRequest("x", Text("x"), stop=stop), tokenizer(name), (), guard.text_filter()
    )
    at = 0
    while at < len(ids) and sequence.finish_reason is None:
        part = tuple(ids[at : at + rng.randint(1, 3)])
        at += len(part)
        measured = tuple(TokenLogprobs(-0.5, ((id, -0.5), (id + 1, -0.7))) for id in part)
        reason = FinishReason.LENGTH if at >= len(ids) else None
        sequence.accept(StepOutput("x", part, measured, finish_reason=reason), None)
    return sequence


@pytest.mark.parametrize("name", usual(["demo", "byte_level", "llama"], "demo"))
def test_a_thousand_planted_strings_split_at_token_borders(name: str, masking: Guard) -> None:
    """In the text, in the tokens' texts and in what their ids and alternatives tell."""
    rng, subject = random.Random(2), tokenizer(name)
    for plant in MANY:
        ids = ids_of(name, plant.text, rng)
        text = subject.decode(ids)
        value = plant.value if plant.value in text else plant.value.strip()
        assert value in text, "the tokens hold it"
        sequence = decoded(name, ids, masking, rng)
        assert not missed(plant, sequence.text, {each.rule for each in sequence.findings}), (plant, sequence.text)
        assert sequence.text == "".join(token.text for token in sequence.tokens) == whole(masking, text)[0]
        assert sequence.sampled == ids and len(sequence.tokens) == len(ids)
        told = subject.decode([token.id for token in sequence.tokens])
        for half in (value[: len(value) // 2], value[len(value) // 2 :]):
            assert half not in told or half in sequence.text, (plant, told)
        assert all(not token.top for token in sequence.tokens if token.special)


def test_every_rule_stops(tmp_path: Path) -> None:
    guard, rng = guarded(tmp_path, action="stop"), random.Random(3)
    for plant in MANY[:120]:
        before = plant.text.partition(plant.value)[0]
        sequence = decoded("demo", ids_of("demo", plant.text, rng), guard, rng)
        assert sequence.finish_reason is FinishReason.CONTENT_FILTER
        assert plant.text.startswith(sequence.text)
        if plant.rule == "corpus":  # n-grams begin in units, and the carrier's last letter may stand there, too
            assert sum(map(str.isalnum, sequence.text[len(before) :])) <= 2
        else:
            assert sequence.text == before
        assert len(sequence.tokens) == len(sequence.sampled)


def test_text_that_cannot_become_a_match_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "guard.toml"
    path.write_text('[patterns]\nphone = "mask"\ncard = "mask"\nemail = "mask"\nresident_number = "mask"\n')
    text_filter = read_guard(path).text_filter()
    assert [text_filter.push(part) for part in ("안녕", "하세요, ", "2024년", " 3월")] == [
        "안녕",
        "하세요, ",
        "2024년",
        " 3월",
    ]
    assert [text_filter.push(part) for part in ("에 mail", " me", " at a", "@b", ".co", "m이")] == [
        "에 ", "mail ", "me at ", "", "", "[e-mail]이",
    ]  # fmt: skip


def test_ordinary_text_is_left_alone(masking: Guard) -> None:
    """The demo model's dialogues have phone numbers of shops, which are meant; everything else in them is ordinary."""
    sentences = {
        sentence
        for number in range(300)
        for message in dialogue(700_000_000 + number, Style((6, 12)), "train", "train").messages
        for sentence in re.split(r"(?<=[.?!\n]) ", message["content"])
    }
    wrong = [text for text in sentences if whole(masking, text)[1].keys() - {"phone"}]
    phones = [text for text in sentences if "phone" in whole(masking, text)[1]]
    assert len(sentences) > 3000
    assert wrong == []
    assert all(re.search(r"0\d{1,2}-\d{3,4}-\d{4}", text) for text in phones), phones


ADVERSARIAL = [
    "1",
    "a@",
    "a.a@",
    "1 ",
    "1-",
    "+1 ",
    "a",
    "(",
    "@",
    "0.",
    "a.",
    "CANARY-",
    "가",
    "010-",
    "900101-",
    "4111 ",
]


@pytest.mark.parametrize("unit", ADVERSARIAL)
def test_work_grows_with_the_length_and_not_faster(unit: str, masking: Guard) -> None:
    """Counted, not timed: the lines of the guard that run. Held text stays small."""
    few, many = (_lines_run(masking, (unit * size)[:size]) for size in (1_000, 4_000))
    assert many < 4.4 * few
    text_filter = masking.text_filter()
    assert all(
        len(text_filter._text) < 700
        for part in cut(unit * 1000, random.Random(5))
        if text_filter.push(part) is not None
    )


def _lines_run(guard: Guard, text: str) -> int:
    import sys

    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    text_filter = guard.text_filter()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        for at in range(0, len(text), 3):
            text_filter.push(text[at : at + 3])
        text_filter.finish()
    finally:
        sys.settrace(None)
    return count


def test_the_first_of_overlapping_matches_gives_the_label(masking: Guard) -> None:
    assert whole(masking, "x +82 10-1234-5678@b.com y")[0] == "x [phone] y"
    assert whole(masking, "a b@c.com.d@e.org f")[0] == "a [e-mail] f"


def test_a_card_behind_other_digits_is_found(masking: Guard) -> None:
    for text in ("2 4111 1111 1111 1111", "4111 1111 1111 1111 25", "12-24 4111-1111-1111-1111 12/26"):
        assert "1111 1111" not in whole(masking, text)[0].replace("-", " ")


def test_fractions_are_no_cards(masking: Guard) -> None:
    for text in ("0.4111111111111111", "[0.4111111111111111, 12.4111111111111111]"):
        assert whole(masking, text) == (text, {})
    assert whole(masking, "no.4111111111111111")[0] == "no.[card]"


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize(
    "before", ["Contact:\n", "a\tb\r\n", "é", "é\n", "C:\\", "C:\\new\\", '"', "주민 번호는 ", "\b\f", "😀"]
)
@pytest.mark.parametrize("value", ["john@example.com", "010-1234-5678", "4111 1111 1111 1111", "900101-1234568"])
def test_a_mask_in_a_json_string_leaves_json(masking: Guard, before: str, value: str, is_ascii: bool) -> None:
    text = json.dumps({"a": f"{before}{value}\n", "b": [before]}, ensure_ascii=is_ascii)
    released, found = in_parts(masking, list(text))
    assert (released, found) == whole(masking, text)
    read = json.loads(released)
    assert read["b"] == [before] and value not in released
    assert read["a"].startswith(before) and read["a"].endswith("]\n") and sum(found.values()) == 1


@pytest.mark.parametrize("text", ["john\\u0040example.com", "\\u00e9john\\u0040example.com", "x\\njohn@example.com"])
def test_an_escape_is_no_part_of_an_address_but_for_its_sign(masking: Guard, text: str) -> None:
    released, found = whole(masking, text)
    assert found == {"email": 1} and "john" not in released and released == text.split("john")[0] + "[e-mail]"
    assert whole(masking, r"john\n@example.com")[1] == {}


def test_copies_in_json_and_copies_with_backslashes_are_found(tmp_path: Path) -> None:
    poem = "Roses are red\nand new\n" + "비밀은 간장 두 큰술\n" * 3
    formula = r"\nabla\beta is what \rho and \theta are to \frac one another"
    Grams.of([poem, formula], b"salt").write(tmp_path / "x.grams")
    (tmp_path / "guard.toml").write_text(
        '[corpus]\naction = "mask"\nfile = "x.grams"\n[canaries]\naction = "mask"\nstrings = ["nightingale-7"]\n'
    )
    guard = read_guard(tmp_path / "guard.toml")
    for text in (poem, formula):
        assert in_parts(guard, list(text))[1] == {"corpus": 1}
        for is_ascii in (True, False):
            released, found = in_parts(guard, list(json.dumps(text, ensure_ascii=is_ascii)))
            assert found == {"corpus": 1} and "[protected text]" in json.loads(released)
    assert whole(guard, r"C:\nightingale-7") == (r"C:\[canary]", {"canary": 1})


def test_luhn_and_resident_numbers() -> None:
    assert passes_luhn([int(digit) for digit in "4111111111111111"])
    assert not passes_luhn([int(digit) for digit in "4111111111111112"])
    assert is_resident_number("9001011234568", separated=False)
    assert not is_resident_number("9001011234567", separated=False), "a wrong check digit"
    assert is_resident_number("9001011234567", separated=True), "numbers given anew since 2020 have none"
    assert is_resident_number("2011013234567", separated=False), "born since"
    assert not is_resident_number("9002301234567", separated=True), "no such day"


@pytest.mark.parametrize("place", ["nowhere/x.grams", "file/x.grams", "directory"])
def test_ngrams_that_cannot_be_written_leave_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match=r"cannot be written \(.*\): name another file"):
        Grams.of(["a text of protected words, with more than 32 letters"]).write(tmp_path / place)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["directory", "file"]


def test_ngrams_find_any_copy_that_is_long_enough(tmp_path: Path) -> None:
    text = "우리 가게의 비밀 양념은 간장 두 큰술과 매실청 한 큰술, 그리고 참기름 조금이다. Stir it twice, then wait."
    grams = Grams.of([text], b"salt")
    grams.write(tmp_path / "x.grams")
    assert Grams.read(tmp_path / "x.grams") == grams
    assert (tmp_path / "x.grams").stat().st_mode & 0o077 == 0
    assert not any(word.encode() in (tmp_path / "x.grams").read_bytes() for word in ("양념", "Stir", "stir"))
    (tmp_path / "guard.toml").write_text('[corpus]\naction = "mask"\nfile = "x.grams"\n')
    guard = read_guard(tmp_path / "guard.toml")
    units = [len(fold(character)) for character in text]
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            if sum(units[start:end]) >= UNITS + 2:
                assert whole(guard, f"음… {text[start:end]}?")[1] == {"corpus": 1}, text[start:end]
                break
    assert whole(guard, text[:10] + "간장을 넣는다")[1] == {}


WRONG_FILES = [
    ('[patterns]\nphone = "hide"', "patterns.phone"),
    ('[patterns]\nfax = "mask"', "patterns.fax"),
    ('[words]\naction = "mask"', "words"),
    ('[canaries]\nstrings = ["CANARY-1"]', "canaries.action"),
    ('[canaries]\naction = "stop"', "canaries.strings"),
    ('[canaries]\naction = "stop"\nstrings = ["CANARY-1", "ab"]', "canaries.strings[1]"),
    ('[canaries]\naction = "stop"\nstrings = ["CANARY-1"]\nfile = "x"', "canaries.file"),
    ('[corpus]\naction = "flag"', "corpus.file"),
    ('[corpus]\naction = "flag"\nfile = "gone.grams"', "gone.grams"),
    ('[corpus]\naction = "flag"\nfile = "guard.toml"', "dosirak guard hash"),
    ("patterns = 3", "patterns"),
    ("[patterns", "TOML"),
    ("", "names no rule"),
]


def test_a_wrong_guard_file_is_refused_by_name(tmp_path: Path) -> None:
    for text, named in WRONG_FILES:
        (tmp_path / "guard.toml").write_text(text)
        with pytest.raises(InvalidRequest, match=re.escape(named)):
            read_guard(tmp_path / "guard.toml")
