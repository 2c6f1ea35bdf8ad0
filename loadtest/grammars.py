"""This test measures what a grammar costs a step: one core answers the same crowd in turns, without a grammar and with
one.

    python -m loadtest.grammars [--shape tinyllama wide] [--streams 32] [--rounds 6] [--new 40]

The shapes have vocabularies of 128,256 and 151,936 and random weights in int8. All sample at temperature 1, without
drafts. The grammar `texts` is a list of long strings, of which nearly no token is certain: its cost is that of masks.
`orders` is a list of objects, whose certain tokens ride along as more rows; in `alone` they come one a step. It prints
milliseconds of a step in which all streams decode, medians, with the interval of the rounds' ratios; of these the
thread's masks beside the forward, the wait for them, the copies of the rows, the mask's kernel, and following the
sampled tokens; tokens a second, and the share of tokens that rode along.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from itertools import count, islice, product
from pathlib import Path
from random import Random
from statistics import median
from string import ascii_lowercase
from typing import Any, Final

from loadtest.alternating import in_turns
from loadtest.bench.cache import CACHE, Cache
from loadtest.bench.wave import random_prompts
from loadtest.checkpoints import TINYLLAMA, WIDE, Shape
from loadtest.idle import Clock
from models.repository.repository import Repository
from service.deployments.engines import engine_config
from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.loading.building import build_runner
from service.engine.runner.sampling import masks
from service.engine.runner.sampling.processors import Masks
from service.engine.runner.sampling.sampler import Sampler
from service.engine.scheduling.speculation import Drafts, Speculation
from service.engine.sequences.constraint import Constraint
from service.engine.sequences.sequence import Sequence
from service.settings import Settings
from service.text.grammars import Grammar
from service.text.grammars.matching import VocabularyGrammars

PROMPT: Final = 32
SHAPES: Final = {"tinyllama": replace(TINYLLAMA, name="tinyllama-128k", vocabulary=128_256), "wide": WIDE}
TEXT: Final[dict[str, Any]] = {"type": "string", "minLength": 100, "maxLength": 400}
ORDER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "count"],
    "additionalProperties": False,
}
GRAMMARS: Final = {
    name: Grammar.of_json_schema({"type": "array", "items": items, "minItems": 50, "maxItems": 99}, "grammar").text
    for name, items in (("texts", TEXT), ("orders", ORDER))
}
LONGEST_WORD: Final = 4
KINDS: Final = {"texts": ("texts", True), "alone": ("orders", False), "orders": ("orders", True)}
"""By row of the table: the grammar, and whether its certain tokens ride along."""
HEADING: Final = (
    "grammar   without     with  ratio        interval   masks    wait  copies  kernel  follow  tokens/s without, with "
    "rode along"
)


def vocabulary(size: int) -> VocabularyGrammars:
    """Returns grammars over the bytes and words of letters."""
    words = ("".join(word) for length in count(2) for word in product(ascii_lowercase, repeat=length))
    tokens = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in islice(words, size - 256))]
    ids = {token: id for id, token in enumerate(tokens)}

    def encode(text: bytes) -> list[int]:
        found, place = list[int](), 0
        while place < len(text):
            length = next(n for n in range(LONGEST_WORD, 0, -1) if text[place : place + n] in ids)
            found.append(ids[text[place : place + length]])
            place += length
        return found

    return VocabularyGrammars.of_tokens(tokens, encode)


def core_of(cache: Cache, shape: Shape) -> EngineCore:
    repository = Repository(cache.repository)
    settings = Settings(data_dir=cache.repository, prefix_caching=False)
    config = engine_config(settings, repository, repository.resolve(cache.version_of(shape, "int8")))
    runner, info = build_runner(config, lambda phase, fraction: None)
    runner.grammars = vocabulary(runner.vocab_size)
    core = build_core(config, runner, info.blocks_total)
    core.scheduler.speculation = CertainOnly(core.scheduler.blocks, core.scheduler.policy, config.max_model_len)
    return core


class Clocks:
    """The parts of a step that only grammars have."""

    def __init__(self) -> None:
        self.masks, self.wait, self.copies, self.kernel, self.follow = (Clock() for _ in range(5))
        masks._masks = self.masks.timed(masks._masks)
        masks.PendingMasks.result = self.wait.timed(masks.PendingMasks.result)  # type: ignore[method-assign]
        Sampler._copies = self.copies.timed(Sampler._copies)  # type: ignore[method-assign]
        Masks.apply = self.kernel.timed(Masks.apply)  # type: ignore[method-assign]
        Constraint.follow = self.follow.timed(Constraint.follow)  # type: ignore[method-assign]

    def take(self) -> tuple[float, ...]:
        return tuple(clock.take() for clock in (self.masks, self.wait, self.copies, self.kernel, self.follow))


class CertainOnly(Speculation):
    """No drafts; certain tokens while `rides`."""

    rides = True

    def certain(self, plan: Mapping[Sequence, int], reserve: int) -> Drafts:
        return super().certain(plan, reserve) if self.rides else {}

    def draft(self, decodes: SequenceOf[Sequence], reserve: int) -> Drafts:
        return {}


class Wave:
    """What the steps of one crowd took while all its streams decoded."""

    def __init__(
        self, core: EngineCore, clocks: Clocks, prompts: Iterable[tuple[int, ...]], params: SamplingParams
    ) -> None:
        ids = []
        for number, prompt in enumerate(prompts):
            ids.append(f"{time.monotonic_ns()}-{number}")
            core.add(Request(ids[-1], prompt, replace(params, seed=number)))
        self.steps, self.parts = list[float](), list[tuple[float, ...]]()
        self.tokens = self.certain = 0
        while core.has_work:
            before = core.stats
            clocks.take()
            started = time.perf_counter()
            outputs = core.step()
            seconds = time.perf_counter() - started
            after = core.stats
            if after.step_sequences == len(ids) and after.prefill_tokens_total == before.prefill_tokens_total:
                self.steps.append(seconds)
                self.parts.append(clocks.take())
                self.tokens += sum(len(output.token_ids) for output in outputs)
                self.certain += after.certain_tokens_total - before.certain_tokens_total
        if not self.steps:
            raise SystemExit("the streams never decode at once: a larger --new, or fewer --streams")

    @property
    def rate(self) -> float:
        return self.tokens / sum(self.steps)


def compare(core: EngineCore, clocks: Clocks, kind: str, shape: Shape, asked: argparse.Namespace) -> str:
    """Returns a row of the table."""
    waves: dict[bool, list[Wave]] = {False: [], True: []}
    grammar, CertainOnly.rides = KINDS[kind]
    for turn, constrained in enumerate(in_turns(asked.rounds + 1)):
        prompts = [tuple(each) for each in random_prompts(shape, asked.streams, PROMPT, Random(turn // 2))]
        params = SamplingParams(max_tokens=asked.new, temperature=1.0, grammar=GRAMMARS[grammar] if constrained else "")
        waves[constrained].append(Wave(core, clocks, prompts, params))
    without, with_ = waves[False][1:], waves[True][1:]
    pairs = zip(without, with_, strict=True)
    ratios = sorted(median(second.steps) / median(first.steps) for first, second in pairs)
    parts = [1e3 * median(part) for part in zip(*(each for wave in with_ for each in wave.parts), strict=True)]
    medians = (1e3 * median(step for wave in side for step in wave.steps) for side in (without, with_))
    rates = (median(wave.rate for wave in side) for side in (without, with_))
    certain = sum(wave.certain for wave in with_) / sum(wave.tokens for wave in with_)
    return (
        f"{kind:8} {' '.join(f'{each:8.2f}' for each in medians)} {median(ratios):6.3f}  {ratios[0]:.3f} to "
        f"{ratios[-1]:.3f} {' '.join(f'{each:7.2f}' for each in parts)}  {' '.join(f'{each:8.1f}' for each in rates)} "
        f"{certain:10.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--new", type=int, default=40)
    parser.add_argument("--cache", type=Path, default=CACHE)
    asked = parser.parse_args()
    cache, clocks = Cache(asked.cache.expanduser()), Clocks()
    cache.prepare_ours({SHAPES[name]: () for name in asked.shape})
    for name in asked.shape:
        core = core_of(cache, SHAPES[name])
        print(f"{name}, {asked.streams} streams, ms of a step")
        print(HEADING)
        for kind in KINDS:
            print(compare(core, clocks, kind, SHAPES[name], asked), flush=True)


if __name__ == "__main__":
    main()
