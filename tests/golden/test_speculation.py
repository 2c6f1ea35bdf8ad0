"""With drafts and without: the same tokens and bitwise the same logprobs, greedy, seeded, with every penalty."""

from __future__ import annotations

import random
from collections.abc import Iterable
from collections.abc import Sequence as Seq

import pytest

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.process.core import EngineCore
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.scheduler import Scheduler
from service.engine.scheduling.speculation import Speculation
from service.engine.sequences.sequence import Sequence
from tests.effort import usual
from tests.golden.conftest import Load
from tests.golden.tiny import MIN_PREFILL, VOCABULARY, Answer, Loaded, answer
from tests.kernels import use

NEW_TOKENS = 24
MODELS = [("llama", "fp32"), ("llama", "bf16"), ("llama", "int8"), ("gemma2", "bf16"), ("gpt2", "int8")]
KINDS = [
    SamplingParams(max_tokens=NEW_TOKENS, logprobs=2),
    SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, seed=7, logprobs=0),
    SamplingParams(max_tokens=NEW_TOKENS, temperature=0.8, top_p=0.9, top_k=50, seed=3, logprobs=3),
    SamplingParams(
        max_tokens=NEW_TOKENS,
        min_tokens=6,
        temperature=0.7,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        presence_penalty=0.2,
        stop_token_ids=(5, 6, 7),
        seed=9,
        logprobs=0,
        prompt_logprobs=0,
    ),
]


class Oracle(Speculation):
    """Drafts what it was told comes next, with every fifth token wrong: up to seven behind every decode."""

    known: dict[str, tuple[int, ...]]

    def proposals(self, decodes: Seq[Sequence]) -> Iterable[tuple[Sequence, tuple[int, ...]]]:
        for sequence in decodes:
            at = sequence.num_output_tokens
            coming = self.known[sequence.request.id][at : at + max(0, self.most(sequence))]
            yield sequence, tuple(t if (at + i) % 5 else (t + 1) % VOCABULARY for i, t in enumerate(coming))


class Knowing(Scheduler):
    speculation_type = Oracle


def _core(loaded: Loaded, known: dict[str, tuple[int, ...]], budget: int, blocks: int | None) -> EngineCore:
    manager = BlockManager(blocks or loaded.info.blocks_total, loaded.info.block_size)
    scheduler = Knowing(manager, BatchingPolicy(budget, MIN_PREFILL, 1e9), 16, 400, speculation=True)
    assert isinstance(scheduler.speculation, Oracle)
    scheduler.speculation.known = known
    return EngineCore(loaded.runner, scheduler, iter(range(10**9)).__next__)


def _requests(rng: random.Random) -> list[Request]:
    lengths = (1, 3, 16, 31, 64, 129)
    return [
        Request(f"{length}-{kind}", tuple(rng.randrange(3, VOCABULARY) for _ in range(length)), params)
        for length in lengths
        for kind, params in enumerate(KINDS)
    ]


def _check(loaded: Loaded) -> None:
    rng = random.Random(5)
    requests = _requests(rng)
    alone: dict[str, Answer] = {}
    for one in requests:
        alone.update(answer(loaded.core(caching=False), {0: [one]}))
    known = {id: found.token_ids for id, found in alone.items()}
    accepted = preempted = 0
    for count, blocks in [(1, None), (1, None), (2, None), (5, 34), (9, None), (9, 40)]:
        members = rng.sample(requests, count)
        core = _core(loaded, known, rng.choice((32, 512)), blocks)
        found = answer(core, {0: members[: count // 2 + 1], 2: members[count // 2 + 1 :]})
        for one in members:
            assert found[one.id].token_ids == alone[one.id].token_ids
            assert found[one.id].logprobs == alone[one.id].logprobs
            assert found[one.id].prompt_logprobs == alone[one.id].prompt_logprobs
        accepted += core.stats.accepted_tokens_total
        preempted += core.stats.preemptions_total
        assert core.stats.accepted_tokens_total < core.stats.draft_tokens_total
    assert accepted > 100
    assert preempted > 0


@pytest.mark.parametrize("kernels", usual(["native", "torch"], "native"))
@pytest.mark.parametrize(("name", "precision"), usual(MODELS, ("llama", "int8"), ("gemma2", "bf16")))
def test_the_same_with_drafts(
    load: Load, name: str, precision: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "torch":
        use("torch", monkeypatch)
    loaded = load(name, precision)
    assert loaded.runner.verifies_drafts
    _check(loaded)


def test_lookup_drafts_by_itself_on_text_that_repeats(load: Load) -> None:
    """Not the oracle: the product's own drafts, with the cost line that it learns from the steps."""
    loaded = load("llama", "fp32")
    phrase = tuple(random.Random(1).randrange(3, VOCABULARY) for _ in range(12))
    bias = tuple((token, 100.0) for token in phrase[:1])
    looping = Request("a", phrase * 6, SamplingParams(max_tokens=200, logit_bias=bias, logprobs=0))
    plain = answer(loaded.core(), {0: [looping]})
    drafting = _core(loaded, {}, 512, None)
    drafting.scheduler.speculation.__class__ = Speculation
    assert answer(drafting, {0: [looping]}) == plain
    assert drafting.stats.accepted_tokens_total > 50
    assert drafting.stats.steps_total < 120
