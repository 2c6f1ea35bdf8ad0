"""The texts that versions are measured on: the same for every model, a short measurement's first among a long one's."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.evaluation import texts
from service.evaluation.planning import EFFORTS
from service.evaluation.texts import Text, dialogues, general, is_demo, project_texts
from service.text.tokenizer import Tokenizer
from tests.checkpoints import save_llama

DEMO = Path(__file__).parents[2] / "models" / "demo" / "weights"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(DEMO)


def test_a_short_measurement_has_the_first_of_a_long_ones_texts(tokenizer: Tokenizer) -> None:
    quick, full = (general(tokenizer, 2048, EFFORTS[effort].texts) for effort in ("quick", "full"))
    assert quick == full[: len(quick)] and len(quick) == EFFORTS["quick"].texts < len(full)
    assert len({text.digest() for text in full}) == len(full)


def test_the_texts_are_short_and_of_every_kind(tokenizer: Tokenizer) -> None:
    written = [tokenizer.decode(list(text.token_ids)) for text in general(tokenizer, 2048)]
    assert all(40 < len(text) < 3_000 for text in written)
    for first in (written[:8], written):
        assert any("def " in text for text in first)
        assert any("식" in text or "니다" in text for text in first)
        assert any("climate" in text for text in first)


@pytest.mark.parametrize("name", ["measured", "calibration"])
def test_every_text_is_of_a_kind_that_is_known(name: str) -> None:
    kinds = [kind for kind, _ in texts._read(name)]
    assert set(kinds) == {"prose", "code", "chat"}
    assert all(kinds.count(kind) >= 2 for kind in set(kinds))


def test_of_a_chat_the_answers_count_alone(tokenizer: Tokenizer) -> None:
    chat = general(tokenizer, 2048, 3)[2]
    counted = tokenizer.decode([chat.token_ids[at] for at in chat.positions])
    assert "Weather is what happens in the air" in counted and "A single winter is weather" in counted
    assert "What is the difference" not in counted and "So can one" not in counted
    assert "What is the difference" in tokenizer.decode(list(chat.token_ids))
    prose = general(tokenizer, 2048, 1)[0]
    assert prose.positions == tuple(range(1, len(prose.token_ids)))


def test_a_short_window_cuts_the_texts(tokenizer: Tokenizer) -> None:
    assert {len(text.token_ids) for text in general(tokenizer, 32)} == {32}


def test_what_calibrates_is_not_measured(tokenizer: Tokenizer) -> None:
    measured = {text.digest() for text in general(tokenizer, 2048)}
    calibrating = general(tokenizer, 2048, of="calibration")
    assert len(calibrating) > 4 and not measured & {text.digest() for text in calibrating}


def test_the_shops_dialogues_are_the_demo_models_alone(tmp_path: Path, tokenizer: Tokenizer) -> None:
    other = save_llama(tmp_path / "llama")
    assert is_demo(DEMO) and not is_demo(other)
    assert project_texts(DEMO, tokenizer, 2048, 4) == dialogues(tokenizer, 2048, 4)
    theirs = Tokenizer.load(other)
    assert project_texts(other, theirs, 128, 4) == general(theirs, 128, 4)


def test_the_scored_positions_of_a_text_can_be_limited() -> None:
    text = Text(tuple(range(100, 120)), (3, 4, 10, 15))
    assert text.scored(2) == Text(tuple(range(100, 105)), (3, 4))
    assert text.scored(9) == Text(tuple(range(100, 116)), text.positions)
    assert Text((1, 2), ()).scored(2) == Text((1, 2), ())
