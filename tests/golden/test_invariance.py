"""Alone or in a crowd: the same tokens and bitwise the same logprobs, whatever else runs in the step.

Each mix draws requests (prompts, some with common prefixes, some that repeat themselves; greedy and seeded; penalties),
arrival steps, a token budget, a pool of blocks that may be too small for all at once, whether prefixes are reused and
whether drafts ride along. Every request's answer
must be the one that it got alone, in one chunk, in an empty engine.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from models.imports.starter import publish_demo
from models.repository.repository import Repository
from models.weights.quantize import quantize
from service.engine.protocol.messages import Request, SamplingParams
from service.evaluation.texts import calibration
from tests.effort import drawn, usual
from tests.golden.conftest import Load
from tests.golden.tiny import VOCABULARY, Answer, Loaded, answer
from tests.kernels import MAIN_KERNELS, use

MIXES = drawn(6, 12)
FEW_MIXES = 4
DEMO_MIXES = drawn(30, 60)
DEMO_VERSIONS = ["1", "2", "int4"]
DEMO = Path(__file__).parents[2] / "models" / "demo" / "weights"
NEW_TOKENS = 20
MODELS = [("llama", "fp32"), ("llama", "bf16"), ("llama", "int8"), ("gemma2", "bf16"), ("gpt2", "int8")]
MODELS += [("gpt_neox", "bf16"), ("gpt_neox", "int8"), ("gpt_neox-sequential", "bf16")]
MODELS += [("t5", "bf16"), ("t5", "int8"), ("bart", "fp32"), ("bart", "int8")]

FEW_MODELS = [("llama", "int8"), ("gemma2", "bf16"), ("gpt_neox", "bf16"), ("t5", "int8")]


def _params(rng: random.Random) -> SamplingParams:
    """Greedy, seeded, and seeded with every filter, in turn."""
    kind = rng.randrange(3)
    if kind == 0:
        return SamplingParams(max_tokens=NEW_TOKENS, logprobs=2)
    seed = rng.randrange(1 << 62)
    if kind == 1:
        return SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, seed=seed, logprobs=0)
    return SamplingParams(
        max_tokens=NEW_TOKENS,
        temperature=0.8,
        top_p=0.9,
        top_k=50,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        seed=seed,
        logprobs=3,
    )


def _library(rng: random.Random, vocabulary: int, count: int = 14) -> list[Request]:
    """Requests to mix; every third begins with the same 45 tokens, every fifth repeats itself."""
    common = [rng.randrange(3, vocabulary) for _ in range(45)]
    requests = []
    for i in range(count):
        own = [rng.randrange(3, vocabulary) for _ in range(rng.choice((1, 5, 16, 31, 64, 129, 150)))]
        own = 9 * own[:16] if i % 5 == 1 else own
        requests.append(Request(str(i), tuple(common + own if i % 3 == 0 else own), _params(rng)))
    return requests


def _check(loaded: Loaded, vocabulary: int, mixes: int) -> None:
    """Fails too when no mix had a preemption, a cached prefix or, where drafts are verified, a draft that came true."""
    assert loaded.info.vocab_size == vocabulary, "it bounds the token ids that the engine takes"
    rng = random.Random(11)
    requests = _library(rng, vocabulary)
    alone: dict[str, Answer] = {}
    for one in requests:
        alone.update(answer(loaded.core(caching=False), {0: [one]}))
    preempted = cached = accepted = 0
    for _ in range(mixes):
        members = rng.sample(requests, rng.randint(2, 9))
        arrivals: dict[int, list[Request]] = {}
        for one in members:
            arrivals.setdefault(rng.choice((0, 0, 1, 4, 9)), []).append(one)
        blocks = rng.choice((28, 33, None))
        budget, caching, speculation = rng.choice((24, 50, 133, 512)), rng.random() < 0.7, rng.random() < 0.5
        core = loaded.core(budget, caching, blocks, speculation)
        found = answer(core, arrivals)
        for one in members:
            assert found[one.id].token_ids == alone[one.id].token_ids
            assert found[one.id].logprobs == alone[one.id].logprobs
        preempted += core.stats.preemptions_total
        cached += core.stats.prefix_hit_tokens_total
        accepted += core.stats.accepted_tokens_total
    assert preempted > 0
    assert cached > 0
    assert accepted > 0 or not loaded.runner.verifies_drafts


@pytest.mark.parametrize(("name", "precision"), usual(MODELS, *FEW_MODELS, ("llama", "fp32"), ("gpt2", "int8")))
def test_alone_or_in_a_crowd(load: Load, name: str, precision: str) -> None:
    _check(load(name, precision), VOCABULARY, MIXES)


@pytest.mark.parametrize(
    ("name", "precision"), usual([("llama", "bf16"), ("gemma2", "int8"), ("gpt2", "bf16")], ("gemma2", "int8"))
)
@pytest.mark.parametrize("kernels", MAIN_KERNELS)
def test_with_8_bit_keys_and_values(
    load: Load, name: str, precision: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(load(name, precision).config.model_dir)
    use(kernels, monkeypatch)
    loaded = Loaded.of(directory, precision, block_size=8, kv_cache_dtype="int8")
    assert loaded.info.kv_bytes_per_block < load(name, precision).info.kv_bytes_per_block
    _check(loaded, VOCABULARY, FEW_MIXES)


@pytest.mark.parametrize(("name", "precision"), usual(MODELS, *FEW_MODELS))
def test_without_native_kernels(load: Load, name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use("torch", monkeypatch)
    _check(load(name, precision), VOCABULARY, FEW_MIXES)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The demo model as a fresh installation publishes it: demo:1 bf16, demo:2 int8; and demo:int4."""
    repository = Repository(tmp_path_factory.mktemp("data"))
    publish_demo(repository, DEMO)
    quantize(repository, repository.get("demo", "1"), "int4", version="int4", calibrate=calibration)
    return repository


@pytest.mark.parametrize("version", usual(DEMO_VERSIONS, "2"))
def test_the_demo_model_as_published(demo: Repository, version: str) -> None:
    manifest = demo.get("demo", version)
    loaded = Loaded.of(demo.path(manifest), manifest.precision, block_size=8)
    assert loaded.info.forward == "decoder"
    _check(loaded, manifest.vocab_size, DEMO_MIXES)


@pytest.mark.nightly
@pytest.mark.parametrize("version", DEMO_VERSIONS)
def test_a_thousand_prompts(demo: Repository, version: str) -> None:
    """Each alone; then all in a crowd, eight more in every step; then a few at a time, with drafts."""
    manifest = demo.get("demo", version)
    loaded = Loaded.of(demo.path(manifest), manifest.precision, block_size=8)
    requests = _library(random.Random(5), manifest.vocab_size, 1000)
    alone: dict[str, Answer] = {}
    for one in requests:
        alone.update(answer(loaded.core(caching=False), {0: [one]}))
    for at_once, steps, drafts in ((8, 1, False), (2, 8, True)):
        core = loaded.core(512, speculation=drafts)
        found = answer(core, {at * steps // at_once: requests[at : at + at_once] for at in range(0, 1000, at_once)})
        answers = [(found[one.id], alone[one.id]) for one in requests]
        differ = [one for one, other in answers if (one.token_ids, one.logprobs) != (other.token_ids, other.logprobs)]
        assert not differ, f"{len(differ)} of 1,000"
        assert core.stats.prefix_hit_tokens_total > 0
        assert core.stats.accepted_tokens_total > 0 or not drafts


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_repeats_itself(load: Load) -> None:
    source = load("llama", "fp32").config.model_dir
    loaded = Loaded.of(Path(source), "bf16", block_size=8, device="cuda")
    one = Request("a", tuple(range(3, 60)), SamplingParams(max_tokens=NEW_TOKENS))
    assert answer(loaded.core(), {0: [one]}) == answer(loaded.core(), {0: [one]})


def test_prompt_logprobs_do_not_depend_on_chunks(load: Load) -> None:
    rng = random.Random(3)
    prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(90))
    asking = Request("a", prompt, SamplingParams(max_tokens=2, prompt_logprobs=2))
    others = [Request(f"b{i}", prompt[i:], SamplingParams(max_tokens=6)) for i in (3, 30)]
    loaded = load("llama", "bf16")
    whole = answer(loaded.core(), {0: [asking]})["a"].prompt_logprobs
    chunked = answer(loaded.core(24), {0: others, 1: [asking]})["a"].prompt_logprobs
    assert len(whole) == len(prompt) - 1
    assert chunked == whole


def test_what_a_failed_sequence_left_in_its_blocks_harms_nobody(load: Load) -> None:
    """Not in the masked positions of the next owner's blocks, not in the padding of its block table."""
    loaded = load("llama", "fp32")
    good = Request("good", tuple(range(3, 40)), SamplingParams(max_tokens=NEW_TOKENS, logprobs=0))
    alone = answer(loaded.core(), {0: [good]})
    cache = loaded.runner.cache
    slots = torch.arange((cache.num_blocks + 1) * cache.block_size)
    for layer, shape in enumerate(cache.shapes):
        no_numbers = torch.full((len(slots), shape.kv_heads, shape.key_dim), float("nan"))
        cache.write(layer, no_numbers, no_numbers, cache.slot_rows(slots, shape.kv_heads))
    assert answer(loaded.core(), {0: [good]}) == alone
