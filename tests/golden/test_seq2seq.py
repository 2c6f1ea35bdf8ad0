"""Encoder-decoder models: the tokens of transformers' `generate`, greedy and sampled, however requests are batched."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers

from service.engine.protocol.messages import SamplingParams
from service.engine.runner.sampling.row import SamplerRow
from service.engine.runner.sampling.sampler import Sampler
from tests.effort import usual
from tests.golden.conftest import Load
from tests.golden.tiny import SEQ2SEQ, VOCABULARY, answer, request
from tests.kernels import MAIN_KERNELS, use

NEW_TOKENS = 24
PENALTY = 4.0
"""Else tied random weights repeat one token; it counts what the decoder has seen, not the encoder."""
LENGTHS = (1, 2, 7, 8, 9, 33, 70, 140)


def prompts() -> Sequence[tuple[int, ...]]:
    """Lengths around blocks; the last two begin alike, which means nothing to an encoder."""
    rng = random.Random(5)
    drawn = [tuple(rng.randrange(3, VOCABULARY) for _ in range(length)) for length in LENGTHS]
    return [*drawn[:-1], drawn[-2] + drawn[-1][:20]]


def _model(load: Load, name: str) -> Any:
    directory = load(name, "fp32").config.model_dir
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)


def _generate(model: Any, prompt: tuple[int, ...], **how: Any) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        num_beams=1,
        repetition_penalty=PENALTY,
        **how,
    )
    return tuple(out[0, 1:].tolist())


@pytest.fixture(scope="module")
def expected(load: Load) -> dict[str, dict[str, tuple[int, ...]]]:
    """What `generate` says to each prompt, alone, by architecture."""
    found = {}
    for name in SEQ2SEQ:
        model = _model(load, name)
        found[name] = {str(i): _generate(model, prompt, do_sample=False) for i, prompt in enumerate(prompts())}
    return found


@pytest.mark.parametrize("kernels", MAIN_KERNELS)
@pytest.mark.parametrize("name", usual(SEQ2SEQ, "t5-gated", "umt5", "bart", "marian"))
def test_greedy_tokens_equal_generate(
    load: Load,
    expected: dict[str, dict[str, tuple[int, ...]]],
    name: str,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(kernels, monkeypatch)
    loaded = load(name, "fp32")
    params = SamplingParams(max_tokens=NEW_TOKENS, repetition_penalty=PENALTY)
    requests = [request(str(i), prompt, params) for i, prompt in enumerate(prompts())]
    core = loaded.core(40)
    together = answer(core, {0: requests})
    assert {i: one.token_ids for i, one in together.items()} == expected[name]
    staggered = answer(core, {2 * i: [one] for i, one in enumerate(reversed(requests))})
    assert {i: one.token_ids for i, one in staggered.items()} == expected[name]
    assert [one.num_cached_tokens for one in staggered.values()] == [len(one.token_ids) for one in reversed(requests)]
    assert any(len(set(tokens)) > 8 for tokens in expected[name].values())


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_sampled_tokens_equal_generate(load: Load, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library draws with `multinomial`; given our draw from its probabilities, it says our tokens."""
    model, loaded = _model(load, name), load(name, "fp32")
    seed, sampler = 77, Sampler()
    numbers = iter(range(1_000_000))

    def ours(probabilities: torch.Tensor, num_samples: int, **_: Any) -> torch.Tensor:
        params = SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, seed=seed)
        row = SamplerRow(params, next(numbers))
        return torch.tensor([[sampler.sample(probabilities.log(), [row])[0].token_id]])

    params = SamplingParams(
        max_tokens=NEW_TOKENS, temperature=1.3, top_k=60, top_p=0.9, repetition_penalty=PENALTY, seed=seed
    )
    found = answer(loaded.core(40), {0: [request(str(i), prompt, params) for i, prompt in enumerate(prompts())]})
    monkeypatch.setattr(torch, "multinomial", ours)
    for i, prompt in enumerate(prompts()):
        numbers = iter(range(1_000_000))
        want = _generate(model, prompt, do_sample=True, temperature=1.3, top_k=60, top_p=0.9)
        assert found[str(i)].token_ids == want
    assert len({one.token_ids for one in found.values()}) == len(found)


def test_an_input_is_computed_whole_or_taken_whole_from_the_cache(load: Load) -> None:
    """Of an input that begins like another nothing is reused, of the same one everything is."""
    loaded = load("t5", "fp32")
    core, params = loaded.core(), SamplingParams(max_tokens=4)
    *_, first, second = prompts()
    found = answer(
        core, {0: [request("a", first, params)], 8: [request("b", second, params)], 16: [request("c", first, params)]}
    )
    assert [found[name].num_cached_tokens for name in "abc"] == [0, 0, len(first)]
    assert found["a"].token_ids == found["c"].token_ids


def test_an_encoder_longer_than_the_budget_is_computed_beside_decodes(load: Load) -> None:
    loaded = load("bart", "fp32")
    params = SamplingParams(max_tokens=NEW_TOKENS)
    core = loaded.core(budget=20)
    found = answer(core, {0: [request("short", prompts()[2], params)], 3: [request("long", prompts()[-1], params)]})
    assert [len(one.token_ids) for one in found.values()] == [NEW_TOKENS, NEW_TOKENS]
