"""This test measures what a draft model is worth: tokens a second with it over those without it, on the same prompts.

    python -m loadtest.drafts [--agreements 0.9 0.8 0.7 0.5 0] [--rounds 5] [--sampled] [1 4 8]

The model has TinyLlama's shape, the draft model a sixteenth of its weights, both in int8. After a share of the tokens,
the agreement, the draft model goes on as the model does. Two schedulers over one model, one of them without the draft
model, answer waves of requests at once in turns: a prompt of 128 tokens and an answer of 64 each. (Two engines would
differ by where their weights lie in memory.) A wave counts from the last first token on. Answers must be the same. The
interval is that of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from loadtest.alternating import in_turns
from loadtest.bench.cache import CACHE, Cache
from loadtest.bench.wave import random_prompts
from loadtest.checkpoints import TINYLLAMA, draft_shape
from loadtest.peers.driver import TEMPERATURE, TOP_P
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config
from service.deployments.engine_options import EngineOptions
from service.engine.process.core import EngineCore
from service.engine.process.worker import build_core
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.loading.building import build_runner
from service.settings import Settings

PROMPT, NEW = 128, 64
Answers = dict[str, list[int]]


def cores_of(data_dir: Path, reference: str, draft: str) -> tuple[EngineCore, EngineCore]:
    """Returns cores without and with the draft model over one model, built as a server would. Only one may have work at
    a time."""
    repository = Repository(data_dir)
    options = EngineOptions(draft=repository.resolve(draft))
    settings = Settings(data_dir=data_dir, prefix_caching=False)
    config = engine_config(settings, repository, repository.resolve(reference), 0, options)
    runner, info = build_runner(config, lambda phase, fraction: None)
    drafting = build_core(config, runner, info.blocks_total)
    runner.draft_model = None
    return build_core(config, runner, info.blocks_total), drafting


def wave(
    core: EngineCore, name: str, prompts: Sequence[Sequence[int]], sampled: bool, new: int = NEW
) -> tuple[Answers, float]:
    """Returns the answers of at most `new` tokens, and the tokens a second from the last first token on."""
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=new)
        if sampled:
            params = SamplingParams(max_tokens=new, temperature=TEMPERATURE, top_p=TOP_P, seed=number)
        core.add(Request(f"{name}-{number}", tuple(prompt), params))
    answers: Answers = {}
    began, before = 0.0, 0
    while core.has_work:
        for output in core.step():
            answers.setdefault(output.request_id, []).extend(output.token_ids)
        if not began and len(answers) == len(prompts):
            began, before = time.perf_counter(), sum(map(len, answers.values()))
    return answers, (sum(map(len, answers.values())) - before) / (time.perf_counter() - began)


def compare(
    plain: EngineCore,
    drafting: EngineCore,
    prompts: Callable[[int], Sequence[Sequence[int]]],
    rounds: int,
    sampled: bool,
    new: int = NEW,
) -> str:
    """Returns a row of the table; `prompts` gives those of a round. Raises SystemExit where answers differ."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    answers: dict[bool, Answers] = {}
    before = drafting.stats
    for turn, with_draft in enumerate(in_turns(rounds + 1)):
        core = drafting if with_draft else plain
        answers[with_draft], rate = wave(core, f"{turn // 2}", prompts(turn // 2), sampled, new)
        rates[with_draft].append(rate)
        if turn % 2 and answers[True] != answers[False]:
            raise SystemExit("answers differ with drafts")
    ratios = sorted(on / off for on, off in zip(rates[True][1:], rates[False][1:], strict=True))
    drafted = drafting.stats.draft_tokens_total - before.draft_tokens_total
    right = drafting.stats.accepted_tokens_total - before.accepted_tokens_total
    figures = f"{median(rates[False][1:]):8.1f} {median(rates[True][1:]):8.1f} {median(ratios):6.2f}"
    return f"{figures}   {ratios[0]:.2f} to {ratios[-1]:.2f} {drafted:8} {right / max(1, drafted):6.2f}"


def _drawn(at_once: int, number: int) -> list[list[int]]:
    return random_prompts(TINYLLAMA, at_once, PROMPT, Random(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("at_once", nargs="*", type=int, default=[1, 4, 8])
    parser.add_argument("--agreements", nargs="+", type=float, default=[0.9, 0.8, 0.7, 0.5, 0.0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sampled", action="store_true", help="temperature 0.7 and top-p 0.9 instead of greedy")
    parser.add_argument("--cache", type=Path, default=CACHE)
    asked = parser.parse_args()
    cache = Cache(asked.cache.expanduser())
    shapes = [draft_shape(agreement) for agreement in asked.agreements]
    cache.prepare_ours(dict.fromkeys((TINYLLAMA, *shapes), ()))
    for shape in shapes:
        plain, drafting = cores_of(cache.repository, *(cache.version_of(each, "int8") for each in (TINYLLAMA, shape)))
        print(
            f"agreement {shape.agreement}\n at once  without     with  ratio   interval      drafts  right", flush=True
        )
        for at_once in asked.at_once:
            drawn = partial(_drawn, at_once)
            print(f"{at_once:8} {compare(plain, drafting, drawn, asked.rounds, asked.sampled)}", flush=True)


if __name__ == "__main__":
    main()
