"""Every architecture in fp32: the tokens of transformers' `generate`, and the same by both of our forwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.forwards.decoder import ACTIVATIONS, FusedDecoder
from service.engine.runner.forwards.native_decoder import NativeDecoder
from tests.effort import drawn, usual
from tests.golden.conftest import Load
from tests.golden.tiny import CONFIGS, DEVICE, VOCABULARY, Loaded, answer, request, save_tiny
from tests.kernels import LIBRARIES, use
from tests.random_models import Sizes
from tests.random_steps import RandomEngine

NEW_TOKENS = 8
LENGTHS = (1, 2, 7, 8, 17, 33, 70, 140)
OF_EXPERTS = ("qwen3_moe", "mixtral", "gpt_oss")
OURS = (
    *("llama", "llama-rope3", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "phi3-longrope"),
    *("gpt_neox", "gpt_neox-sequential"),
    *OF_EXPERTS,
)

Prompts = Sequence[tuple[int, ...]]


def prompts(name: str = "llama") -> Prompts:
    """Lengths around blocks, tiles and windows; the last two share a long prefix. Of an architecture whose rotary table
    the library switches by length, those past the switch."""
    rng = random.Random(5)
    drawn = [tuple(rng.randrange(3, VOCABULARY) for _ in range(length)) for length in LENGTHS]
    every = [*drawn[:-1], drawn[-2] + drawn[-1][:20]]
    return every[-2:] if name == "phi3-longrope" else every


@pytest.fixture(scope="module")
def expected(load: Load) -> dict[str, list[tuple[int, ...]]]:
    """What `generate` says to each prompt, alone, by architecture."""
    found = {}
    for name in CONFIGS:
        directory = load(name, "fp32").config.model_dir
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
        found[name] = [_generate(model, prompt) for prompt in prompts(name)]
    return found


def _generate(model: transformers.PreTrainedModel, prompt: tuple[int, ...]) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    out = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
    )
    return tuple(out[0, len(prompt) :].tolist())


def _requests(name: str) -> list[Request]:
    return [request(str(i), prompt, SamplingParams(max_tokens=NEW_TOKENS)) for i, prompt in enumerate(prompts(name))]


@pytest.mark.parametrize(("budget", "caching"), usual([(24, True), (57, False), (512, True)], (24, True)))
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_equal_generate(
    load: Load, expected: dict[str, list[tuple[int, ...]]], name: str, budget: int, caching: bool
) -> None:
    """All at once, then one more every other step in another order, then the same again from a warm cache."""
    loaded = load(name, "fp32")
    core = loaded.core(budget, caching)
    want = {str(i): tokens for i, tokens in enumerate(expected[name])}
    together = answer(core, {0: _requests(name)})
    assert {i: found.token_ids for i, found in together.items()} == want
    order = _requests(name)
    random.Random(budget).shuffle(order)
    staggered = answer(core, {2 * i: [one] for i, one in enumerate(order)})
    assert {i: found.token_ids for i, found in staggered.items()} == want
    assert (sum(found.num_cached_tokens for found in staggered.values()) > 0) == caching


@pytest.mark.parametrize("name", usual(CONFIGS, "llama-rope3", "gemma3_text", "falcon-alibi", "opt"))
def test_tokens_equal_generate_without_native_kernels(
    load: Load, expected: dict[str, list[tuple[int, ...]]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("torch", monkeypatch)
    loaded = load(name, "fp32")
    assert not any(kernel.startswith("native kernels") for kernel in loaded.info.kernels)
    found = answer(loaded.core(57), {0: _requests(name)})
    assert [found[str(i)].token_ids for i in range(len(found))] == expected[name]


def test_longrope_has_the_short_factors_where_the_window_is_its_first_one(tmp_path: Path) -> None:
    """As the library has them for prompts that short. One choice for all sequences, so that keys can be shared."""
    directory = save_tiny("phi3-longrope", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    short = [prompt for prompt in prompts() if len(prompt) <= 64 - NEW_TOKENS]
    requests = [request(str(i), prompt, SamplingParams(max_tokens=NEW_TOKENS)) for i, prompt in enumerate(short)]
    said = {}
    for window in (64, 400):
        found = answer(Loaded.of(directory, "fp32", max_model_len=window).core(), {0: requests})
        said[window] = [found[str(i)].token_ids for i in range(len(found))]
    assert said[64] == [_generate(model, prompt) for prompt in short]
    assert said[400] != said[64]


@pytest.mark.parametrize("batch_size", range(1, 9))
def test_every_batch_size(load: Load, expected: dict[str, list[tuple[int, ...]]], batch_size: int) -> None:
    for name in ("llama", "gpt2"):
        found = answer(load(name, "fp32").core(), {0: _requests(name)[-batch_size:]})
        assert [one.token_ids for one in found.values()] == expected[name][-batch_size:]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_way_is_chosen_by_what_the_architecture_can_do(load: Load, name: str) -> None:
    loaded = load(name, "fp32")
    packed = not name.startswith("falcon")
    is_ours = name in OURS and (DEVICE == "cpu" or name not in OF_EXPERTS)
    assert loaded.info.forward == ("decoder" if is_ours else "transformers")
    assert ("attention: library, per sequence" in loaded.info.kernels) == (not packed)


STEPS = 3


def _engine(seed: str) -> RandomEngine:
    """A random model that both forwards compute: without experts."""
    for number in range(1000):
        rng = random.Random(f"{seed} {number}")
        sizes = replace(Sizes.random(rng), experts=0)
        engine = RandomEngine(rng, "fp32", torch.float32, sizes, adapters=0)
        if engine.whole.outline.activation in ACTIVATIONS:
            return engine
    raise AssertionError("unreachable")


@pytest.mark.parametrize("level", LIBRARIES)
@torch.inference_mode()
def test_the_native_decoder_computes_what_torch_operations_do(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(level, monkeypatch)
    for seed in range(drawn(24, 100)):
        engine = _engine(str(seed))
        assert engine.whole.embedding is not None
        whole = replace(engine.whole, dtype=torch.float32, embedding=engine.whole.embedding.float())
        native, fused = NativeDecoder(whole, engine.cache), FusedDecoder(whole)
        for step in filter(lambda step: len(step.token_ids), (engine.step() for _ in range(STEPS))):
            torch.testing.assert_close(native(step), fused(step), rtol=2e-4, atol=2e-4, msg=f"seed {seed}")
