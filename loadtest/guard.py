"""`python -m loadtest.guard` measures what the guard costs: microseconds of processor time per token, without a guard
and with each of its rules, medians of rounds taken in turn. No engine runs: the demo's dialogues are decoded token by
token.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from models.demo.grammar import Style, dialogue
from service.context.prompt import Text
from service.engine.protocol.messages import StepOutput
from service.generation.guard import Grams, Guard, read_guard
from service.generation.output_sequence import OutputSequence
from service.generation.request import GenerationRequest
from service.text.tokenizer import Tokenizer

WEIGHTS: Final = Path(__file__).parent.parent / "models" / "demo" / "weights"
PATTERNS: Final = ("email", "phone", "card", "resident_number")
CORPUS_BYTES: Final = 1_000_000
ANSWER_TOKENS: Final = 256


def answers(tokenizer: Tokenizer, tokens: int) -> list[list[int]]:
    """Answers of ANSWER_TOKENS tokens, in Korean and English."""
    ids: list[int] = []
    number = 0
    while len(ids) < tokens:
        made = dialogue(700_000_000 + number, Style((6, 12)), "train", "train")
        ids += tokenizer.encode("\n".join(message["content"] for message in made.messages))
        number += 1
    return [ids[at : at + ANSWER_TOKENS] for at in range(0, tokens, ANSWER_TOKENS)]


def corpus() -> list[str]:
    """About a megabyte of syllables and letters at random, which nothing copies."""
    rng, alphabet = random.Random(1), [chr(0xAC00 + 28 * at) for at in range(0, 399, 3)] + list("abcdefghij   ")
    return ["".join(rng.choices(alphabet, k=1000)) for _ in range(CORPUS_BYTES // 2800)]


def files(folder: Path) -> dict[str, Path]:
    """A guard file for each column."""
    started = time.perf_counter()
    grams = Grams.of(corpus())
    grams.write(folder / "corpus.grams")
    size = (folder / "corpus.grams").stat().st_size / 1e6
    print(
        f"corpus of 1 MB: {len(grams.hashes)} n-grams, {size:.1f} MB, hashed in {time.perf_counter() - started:.1f} s"
    )
    canaries = f"strings = {[f'CANARY-{number:08x}' for number in range(100)]}"
    parts = {f"{name} mask": f'[patterns]\n{name} = "mask"\n' for name in PATTERNS}
    parts["100 canaries"] = f'[canaries]\naction = "mask"\n{canaries}\n'
    parts["corpus flag"] = '[corpus]\naction = "flag"\nfile = "corpus.grams"\n'
    every = "[patterns]\n" + "".join(f'{name} = "{{action}}"\n' for name in PATTERNS)
    every += f'[canaries]\naction = "{{action}}"\n{canaries}\n'
    parts["all but corpus, flag"] = every.format(action="flag")
    parts["all but corpus, mask"] = every.format(action="mask")
    parts["all, corpus flag"] = every.format(action="mask") + parts["corpus flag"]
    parts["all, corpus mask"] = every.format(action="mask") + parts["corpus flag"].replace("flag", "mask")
    found = dict[str, Path]()
    for name, text in parts.items():
        found[name] = folder / f"{len(found)}.toml"
        found[name].write_text(text)
    return found


def seconds(tokenizer: Tokenizer, guard: Guard | None, texts: Sequence[Sequence[int]]) -> float:
    """Of the processor, to decode all of them, a token a step."""
    outputs = [[StepOutput("x", (id,)) for id in ids] for ids in texts]
    started = time.process_time()
    for steps in outputs:
        sequence = OutputSequence(
            0, 0, GenerationRequest("x", Text("x")), tokenizer, (), guard.text_filter() if guard else None
        )
        for output in steps:
            sequence.accept(output, None)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_240)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tokenizer = Tokenizer.load(WEIGHTS)
    texts = answers(tokenizer, options.tokens)
    with tempfile.TemporaryDirectory() as folder:
        guards = {"no guard": None, **{name: read_guard(path) for name, path in files(Path(folder)).items()}}
    taken: dict[str, list[float]] = {name: [] for name in guards}
    for _ in range(options.rounds):
        for name, guard in guards.items():
            taken[name].append(seconds(tokenizer, guard, texts) / options.tokens * 1e6)
    base = statistics.median(taken["no guard"])
    print(f"{options.tokens} tokens, {options.rounds} rounds\n| rules | µs a token | more |\n|---|---|---|")
    for name, each in taken.items():
        print(f"| {name} | {statistics.median(each):.1f} | {statistics.median(each) - base:.1f} |")


if __name__ == "__main__":
    main()
