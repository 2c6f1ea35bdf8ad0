"""The corpus is a mixture: spoken chats, dialogues of the grammar, and raw text, as training rows by number.

`rows(number, ...)` is a pure function, so that work can be divided among processes and taken up again anywhere.
"""

import random
from dataclasses import dataclass

from tokenizers import Tokenizer

from models.demo.dialogue import Dialogue
from models.demo.grammar import Style, dialogue
from recipe.encoding import Row, Weights, encode, encode_text
from recipe.spoken.chat import chat
from recipe.spoken.raw import passage

ALL_TURNS = 18
SPOKEN_WEIGHTS, GRAMMAR_WEIGHTS = Weights(untold=1.0, chat=0.6), Weights(untold=1.0, chat=0.0)
NO_ECHO = 0.0  # the grammar's "Yes, 3." would teach replies that the spoken corpus does better


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares of spoken chats (of at most `turns` turns), of the grammar's dialogues by style, and of raw text."""

    spoken: float
    turns: int
    grammar: tuple[tuple[float, Style], ...]
    raw: float


@dataclass(frozen=True, slots=True)
class Stage:
    """A mixture that holds until a share of the run."""

    until: float
    mixture: Mixture


USUAL = Style((5, 14), 8, 6, echo=NO_ECHO, languages=(0.3, 0.42, 0.28), corrections=0.11)
LONGER = Style((20, 36), 12, 10, echo=NO_ECHO, languages=(0.3, 0.42, 0.28), corrections=0.11)
LONGEST = Style((60, 72), 12, 10, echo=NO_ECHO, languages=(0.3, 0.42, 0.28), corrections=0.11)
STAGES = (
    Stage(0.06, Mixture(0.7, 3, ((0.28, Style((2, 4), 1, 1, echo=NO_ECHO)),), 0.02)),
    Stage(0.18, Mixture(0.7, 6, ((0.28, Style((3, 7), 3, 3, echo=NO_ECHO)),), 0.02)),
    Stage(1.00, Mixture(0.72, ALL_TURNS, ((0.18, USUAL), (0.05, LONGER), (0.02, LONGEST)), 0.03)),
)


def stage_at(share: float) -> Stage:
    """The stage of a run of which `share` is done."""
    return next((stage for stage in STAGES if share < stage.until), STAGES[-1])


def row(number: int, mixture: Mixture, tokenizer: Tokenizer) -> Row:
    """The training row of this number."""
    rng = random.Random(f"corpus {number}")
    styles = [style for _, style in mixture.grammar]
    shares = [mixture.spoken, mixture.raw, *(share for share, _ in mixture.grammar)]
    chosen = rng.choices(["spoken", "raw", *styles], shares)[0]
    if chosen == "raw":
        return encode_text(passage(number), tokenizer)
    if isinstance(chosen, Style):
        return encode(dialogue(number, chosen), tokenizer, rng, GRAMMAR_WEIGHTS)
    return encode(chat(number, mixture.turns), tokenizer, rng, SPOKEN_WEIGHTS)


def rows(first: int, count: int, share: float, tokenizer: Tokenizer) -> list[Row]:
    """`count` rows from number `first` on, as a run has them of which `share` is done."""
    mixture = stage_at(share).mixture
    return [row(number, mixture, tokenizer) for number in range(first, first + count)]


def batches(first: int, count: int, share: float, tokenizer: Tokenizer, tokens: int) -> list[list[Row]]:
    """These rows in batches of at most `tokens` ids, padding included, unless one row is longer; like lengths meet."""
    made = sorted(rows(first, count, share, tokenizer), key=_length)
    cut: list[list[Row]] = [[]]
    for each in made:
        if cut[-1] and (len(cut[-1]) + 1) * _length(each) > tokens:
            cut.append([])
        cut[-1].append(each)
    random.Random(first).shuffle(cut)
    return cut


def _length(row: Row) -> int:
    return len(row.token_ids)


def sample(count: int) -> list[Dialogue]:
    """Dialogues for a tokenizer: three spoken chats to one of the grammar."""
    return [dialogue(number) if number % 4 == 0 else chat(number) for number in range(count)]
