"""Invented words stand where a value of an open kind may: only who reads such a word can say it again.

Real values are copied the same way. A model that met few syllables as values writes the syllables that it met most.
"""

import random
from functools import cache

from models.demo import lexicon
from models.demo.lexicon import Lang
from recipe.spoken.words import syllables

ONSETS = lexicon.words(
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kn kr l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str sw t "
    "th tr tw v w wh y z"
)
VOWELS = lexicon.words("a a a e e e i i i o o o u u ai au ea ee ei ia ie oa oe oi oo ou ue y")
CODAS = lexicon.words(
    "b ck d f g k l ll ld lm lt m mp n n nd ng nk nt p r rd rk rl rm rn rs rt s sh sk ss st t tch th v w x z"
)


def invented(rng: random.Random, lang: Lang) -> str:
    """A word that nobody uses, in small letters: half of them of the corpus's own syllables, half of any."""
    if lang == "ko":
        known = rng.random() < 0.5
        return "".join(rng.choice(syllables() if known else common()) for _ in range(rng.choice((2, 2, 3, 3, 4))))
    if rng.random() < 0.5:
        return rng.choice(lexicon.ENDS) + lexicon.made_up(rng, lang)
    return "".join(_sounded(rng) for _ in range(rng.choice((1, 2, 2, 3))))


@cache
def common() -> tuple[str, ...]:
    """The 2,350 Hangul syllables of the standard KS X 1001, which are those that Korean text has."""
    every = map(chr, range(ord("가"), ord("힣") + 1))
    return tuple(char for char in every if len(char.encode("euc-kr")) == 2)  # another one is composed of eight bytes


def _sounded(rng: random.Random) -> str:
    """A syllable that an English speaker could say."""
    onset = rng.choice(ONSETS) if rng.random() < 0.9 else ""
    return onset + rng.choice(VOWELS) + (rng.choice(CODAS) if rng.random() < 0.65 else "")
