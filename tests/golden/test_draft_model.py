"""With a draft model and without: the same tokens and bitwise the same logprobs, however good its guesses are."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.process.core import EngineCore
from service.engine.protocol.config import DraftConfig
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner import draft_model
from service.engine.runner.forwards.forward import CannotServe
from service.engine.scheduling.batching import BatchingPolicy, ModelOffer
from service.engine.scheduling.cost import CostLine, StepWork
from service.engine.scheduling.scheduler import Scheduler
from tests.effort import usual
from tests.golden.adapters import train, version
from tests.golden.test_speculation import KINDS
from tests.golden.tiny import (
    CONFIGS,
    DEVICE,
    MIN_PREFILL,
    VOCABULARY,
    Answer,
    Loaded,
    answer,
    save_int8,
    save_random,
    save_tiny,
)
from tests.kernels import use

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="drafts are verified on a processor only")

NEW_TOKENS = 24


class Always(BatchingPolicy):
    """Lets the model draft as much as there is room for, whatever it costs; n-grams have no say."""

    def pays(self, work: StepWork) -> bool:
        return True

    def draft_lengths(self, work: StepWork, offers: Seq[object], room: int) -> list[int]:
        return [0] * len(offers)

    def model_draft_lengths(
        self, work: StepWork, tokens: float, offers: Seq[ModelOffer], drafting: CostLine, room: int
    ) -> list[int]:
        return [max(0, min(offer.most, room // max(1, len(offers)))) for offer in offers]


def _core(loaded: Loaded, budget: int = 512, blocks: int | None = None, caching: bool = True) -> EngineCore:
    manager = BlockManager(blocks or loaded.info.blocks_total, loaded.info.block_size, caching)
    policy = Always(budget, MIN_PREFILL, 1e9)
    scheduler = Scheduler(manager, policy, 16, 400, True, draft_model=loaded.runner.draft_model)
    return EngineCore(loaded.runner, scheduler, iter(range(10**9)).__next__)


def _drafting(
    target: Path, precision: str, draft: Path, draft_precision: str, window: int = 512, **fields: Any
) -> Loaded:
    dtype = "fp32" if draft_precision == "fp32" else "bf16"
    config = DraftConfig(model_dir=str(draft), precision=draft_precision, dtype=dtype, max_model_len=window)
    return Loaded.of(target, precision, block_size=8, draft=config, **fields)


def _requests(seed: int) -> list[Request]:
    rng = random.Random(seed)
    shared = tuple(rng.randrange(3, VOCABULARY) for _ in range(40))
    return [
        Request(
            f"{length}-{kind}",
            shared[: length // 2] + tuple(rng.randrange(3, VOCABULARY) for _ in range(length)),
            params,
        )
        for length in (1, 16, 31, 129)
        for kind, params in enumerate(KINDS)
    ]


def _alone(loaded: Loaded, requests: Seq[Request]) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    for one in requests:
        found.update(answer(loaded.core(caching=False), {0: [one]}))
    return found


def _check(plain: Loaded, drafting: Loaded, requests: Seq[Request]) -> tuple[int, int]:
    """Returns the drafts that were verified and those that were right."""
    alone, rng = _alone(plain, requests), random.Random(2)
    drafted = accepted = preempted = 0
    for count, blocks in [(1, None), (2, None), (5, 36), (9, None), (9, 42), (16, 30)]:
        members = rng.sample(list(requests), min(count, len(requests)))
        core = _core(drafting, rng.choice((40, 512)), blocks)
        found = answer(core, {0: members[: count // 2 + 1], 3: members[count // 2 + 1 :]})
        for one in members:
            assert found[one.id].token_ids == alone[one.id].token_ids
            assert found[one.id].logprobs == alone[one.id].logprobs
            assert found[one.id].prompt_logprobs == alone[one.id].prompt_logprobs
        core.scheduler.check_integrity()
        drafted += core.stats.draft_tokens_total
        accepted += core.stats.accepted_tokens_total
        preempted += core.stats.preemptions_total
    assert preempted > 0
    return drafted, accepted


@pytest.mark.parametrize("kernels", usual(["native", "torch"], "native"))
def test_a_model_that_drafts_for_itself_is_right_nearly_always(
    tmp_path: Path, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With chance and penalties too: it draws by the same seed and position."""
    if kernels == "torch":
        use("torch", monkeypatch)
    directory = save_tiny("llama", tmp_path / "target")
    plain = Loaded.of(directory, "fp32", block_size=8)
    drafted, accepted = _check(plain, _drafting(directory, "fp32", directory, "fp32"), _requests(1))
    assert accepted > 300
    assert accepted > 0.95 * drafted


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "precision", "draft", "draft_precision"),
    [("llama", "int8", "qwen3", "bf16"), ("gemma2", "bf16", "gpt2", "int8"), ("mixtral", "bf16", "gpt_neox", "fp32")],
)
def test_a_model_that_is_wrong_changes_no_token(
    tmp_path: Path, name: str, precision: str, draft: str, draft_precision: str
) -> None:
    """Another architecture, forward, precision; a larger or a smaller vocabulary."""
    target = save_tiny(name, tmp_path / "target")
    config = CONFIGS[draft]
    config = type(config)(**config.to_dict() | {"vocab_size": VOCABULARY + (30 if name == "llama" else -30)})
    small = save_random(config, tmp_path / "draft", 3)
    if precision == "int8":
        target = save_int8(target, tmp_path / "target8")
    if draft_precision == "int8":
        small = save_int8(small, tmp_path / "draft8")
    plain = Loaded.of(target, precision, block_size=8)
    drafting = _drafting(target, precision, small, draft_precision, window=100)
    drafted, accepted = _check(plain, drafting, _requests(2))
    assert 0 <= accepted < 0.2 * drafted


def test_text_that_is_found_in_the_cache_or_read_without_drafts_is_read_later(tmp_path: Path) -> None:
    directory = save_tiny("llama", tmp_path)
    drafting = _drafting(directory, "fp32", directory, "fp32")
    prompt = tuple(random.Random(4).randrange(3, VOCABULARY) for _ in range(90))
    params = SamplingParams(max_tokens=30, logprobs=0)
    alone = answer(drafting.core(caching=False), {0: [Request("a", prompt, params)]})["a"]
    core = _core(drafting)
    assert answer(core, {0: [Request("a", prompt, params)]})["a"] == alone
    drafts = core.stats.draft_tokens_total
    again = answer(core, {0: [Request("b", prompt, params)]})["b"]
    assert again.token_ids == alone.token_ids and again.num_cached_tokens >= 80
    assert core.stats.accepted_tokens_total > 0.95 * core.stats.draft_tokens_total
    assert core.stats.draft_tokens_total > drafts


def test_long_text_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "MAX_READ_TOKENS", 32)
    directory = save_tiny("llama", tmp_path)
    drafting = _drafting(directory, "fp32", directory, "fp32")
    rng = random.Random(4)
    prompts = [tuple(rng.randrange(3, VOCABULARY) for _ in range(length)) for length in (150, 40, 33)]
    requests = [Request(f"{i}", prompt, SamplingParams(max_tokens=40)) for i, prompt in enumerate(prompts)]
    alone = _alone(drafting, requests)
    core = _core(drafting)
    assert answer(core, {0: requests}) == alone
    assert core.stats.accepted_tokens_total > 50
    assert core.stats.accepted_tokens_total > 0.95 * core.stats.draft_tokens_total


def test_an_adapters_answers_are_drafted_by_the_base(tmp_path: Path) -> None:
    base = save_tiny("llama", tmp_path / "base")
    made = version(base, train(base, tmp_path / "peft", 3), tmp_path / "made")
    known = (("mine", str(made)),)
    plain = Loaded.of(base, "fp32", block_size=8, adapters=known)
    drafting = _drafting(base, "fp32", base, "fp32", adapters=known)
    requests = [replace(each, adapter="mine" if number % 2 else "") for number, each in enumerate(_requests(3))]
    drafted, accepted = _check(plain, drafting, requests)
    assert 0 < accepted < drafted


def test_a_block_holds_the_keys_of_both_models(tmp_path: Path) -> None:
    directory = save_tiny("llama", tmp_path)
    plain = Loaded.of(directory, "fp32", block_size=8, kv_cache_bytes=1 << 20)
    both = _drafting(directory, "fp32", directory, "fp32", kv_cache_bytes=1 << 20)
    assert both.info.kv_bytes_per_block == 2 * plain.info.kv_bytes_per_block
    assert both.info.blocks_total == plain.info.blocks_total // 2
    assert both.info.memory_bytes == 2 * plain.info.memory_bytes
    assert "drafts: decoder" in both.info.kernels


def test_rows_that_depend_on_others_cannot_verify_drafts(tmp_path: Path) -> None:
    """The library's attention, one sequence at a time, gives a row other bits beside drafts."""
    directory = save_tiny("falcon-alibi", tmp_path / "target")
    with pytest.raises(CannotServe, match="cannot be verified"):
        _drafting(directory, "bf16", directory, "bf16")
