"""Embeddings are the library's own hidden states, pooled: the same bits alone, in a crowd, and cut anywhere."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from models.imports.importing import import_source
from models.imports.starter import WEIGHTS
from models.repository.repository import Repository
from models.weights.hadamard import BLOCK, of_weights, transformed
from models.weights.int4 import Int4Weight, decoded
from models.weights.loading import MappedWeights
from models.weights.quantize import quantize
from service.engine.protocol.messages import FinishReason, Pooling, Request, SamplingParams
from service.engine.runner.linear import activation_reach
from service.evaluation.texts import calibration
from tests.effort import usual
from tests.golden.adapters import base_model, train, version
from tests.golden.conftest import Load
from tests.golden.tiny import Loaded, answer, request, save_tiny
from tests.kernels import TORCH, use

NAME = "an-adapter"

PROMPTS = {f"{length}": tuple((7 * i * i + length) % 199 for i in range(length)) for length in (1, 2, 17, 61, 160)}
CROWD = [request(f"crowd{i}", [(i + 3 * j) % 199 for j in range(40)], SamplingParams(max_tokens=30)) for i in range(5)]
OWN = ("llama", "gemma2", "gpt_neox", "qwen3_moe")
FOREIGN = ("opt", "falcon")
ALONE = ("falcon-alibi",)
"""Architectures by their forwards: ours, the library's over packed rows, and the library's a sequence at a time."""


def embedding(prompt: Iterable[int], kind: Pooling, name: str = "a", adapter: str = "") -> Request:
    return Request(name, tuple(prompt), SamplingParams(max_tokens=0, pooling=kind), adapter=adapter)


def vectors(
    loaded: Loaded, requests: Iterable[Request], crowd: Iterable[Request] = (), **core: Any
) -> dict[str, bytes]:
    """The pooled bytes by request; the requests come while the crowd decodes."""
    asked = list(requests)
    found = answer(loaded.core(**core), {0: crowd, 3: asked})
    assert all(found[each.id].token_ids == () for each in asked)
    return {each.id: found[each.id].pooled for each in asked}


def expected(model: Any, prompt: Iterable[int], kind: Pooling) -> torch.Tensor:
    with torch.inference_mode():
        states: torch.Tensor = model.base_model(input_ids=torch.tensor([list(prompt)])).last_hidden_state[0]
    return {Pooling.MEAN: states.mean(0), Pooling.LAST: states[-1], Pooling.CLS: states[0]}[kind]


def as_tensor(pooled: bytes) -> torch.Tensor:
    return torch.tensor(array("f", pooled))


@pytest.mark.parametrize("kind", Pooling)
@pytest.mark.parametrize("name", usual([*OWN, *FOREIGN, *ALONE], "llama", "opt", "falcon-alibi"))
def test_the_librarys_own_states(load: Load, name: str, kind: Pooling) -> None:
    loaded = load(name, "fp32")
    model = transformers.AutoModelForCausalLM.from_pretrained(loaded.config.model_dir, dtype=torch.float32)
    requests = [embedding(prompt, kind, name) for name, prompt in PROMPTS.items()]
    for each, pooled in vectors(loaded, requests, CROWD, budget=40).items():
        torch.testing.assert_close(as_tensor(pooled), expected(model, PROMPTS[each], kind), atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The demo model in bf16, and its 4-bit version."""
    repository = Repository(tmp_path_factory.mktemp("data"))
    parent = import_source(repository, str(WEIGHTS), "demo", version="bf16")
    small = quantize(repository, parent, "int4", version="int4", calibrate=calibration)
    return repository.path(parent), repository.path(small)


@pytest.mark.parametrize("kind", Pooling)
def test_int4(int4: tuple[Path, Path], kind: Pooling) -> None:
    """The same bits alone and in a crowd; as close to the library's model with the weights that the codes stand for as
    that model is to itself once what its products read is rounded as this processor's kernels round it."""
    parent, directory = int4
    loaded = Loaded.of(directory, "int4", block_size=8)
    requests = [embedding(prompt, kind, name) for name, prompt in PROMPTS.items()]
    alone = {each.id: vectors(loaded, [each])[each.id] for each in requests}
    for limits in ({}, {"budget": 22}, {"blocks": 40}):
        assert vectors(loaded, requests, CROWD, **limits) == alone
    model = transformers.AutoModelForCausalLM.from_pretrained(parent, dtype=torch.float32)
    stored = MappedWeights(directory, torch.float32, "int4")
    products = {name: each for name, each in model.base_model.named_modules() if isinstance(each, torch.nn.Linear)}
    for name, module in products.items():
        coded = stored.linear(f"model.{name}")
        assert isinstance(coded.weight, Int4Weight) and coded.scale is not None
        module.weight.data = as_it_was(coded)
    model.get_input_embeddings().weight.data = as_it_was(stored.linear("lm_head"))  # which is the embedding too
    wanted = {each: expected(model, PROMPTS[each], kind) for each in alone}
    for module in products.values():
        module.register_forward_pre_hook(rounded)
    for each, pooled in alone.items():
        error, usual_error = (
            (found - wanted[each]).norm() for found in (as_tensor(pooled), expected(model, PROMPTS[each], kind))
        )
        assert error < 2 * usual_error  # 0.7 to 1.5 times as measured; a wrong pooling is wrong by eight times and more


def as_it_was(coded: Any) -> torch.Tensor:
    """The weights that codes stand for, before their transform."""
    return transformed(decoded(coded.weight).float() * coded.scale.float().view(-1, 1), coded.hadamard)


def rounded(module: torch.nn.Module, read: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """What a product reads: each row behind the transform, in codes up to the kernels' largest: 127, or 63 on AVX2."""
    rows = transformed(read[0], BLOCK)
    scale = rows.abs().amax(-1, keepdim=True) / activation_reach()
    return (of_weights((rows / scale).round() * scale, BLOCK),)


@pytest.mark.parametrize("kind", Pooling)
@pytest.mark.parametrize(
    ("name", "precision"), [("llama", "fp32"), ("llama", "bf16"), ("llama", "int8"), ("opt", "fp32")]
)
def test_the_same_bits_alone_and_in_a_crowd(load: Load, name: str, precision: str, kind: Pooling) -> None:
    loaded = load(name, precision)
    requests = [embedding(prompt, kind, name) for name, prompt in PROMPTS.items()]
    alone = {each.id: vectors(loaded, [each])[each.id] for each in requests}
    assert len(set(alone.values())) == len(alone), "prompts have vectors of their own"
    assert vectors(loaded, requests, CROWD) == alone
    assert vectors(loaded, requests, CROWD, budget=22) == alone, "cut into chunks"
    assert vectors(loaded, requests, CROWD, blocks=40) == alone, "preempted"


def test_only_the_last_token_comes_behind_a_cached_prefix(load: Load) -> None:
    loaded, prompt = load("llama", "fp32"), PROMPTS["160"]
    for kind in Pooling:
        asked = [embedding(prompt, kind, "first"), embedding(prompt, kind, "again")]
        found = answer(loaded.core(), {0: asked[:1], 5: asked[1:]})
        assert found["first"].pooled == found["again"].pooled
        assert (found["again"].num_cached_tokens > 0) is (kind is Pooling.LAST)


def test_an_adapter_has_the_vectors_of_peft(tmp_path: Path) -> None:
    base = save_tiny("llama", tmp_path / "base")
    adapter = train(base, tmp_path / "adapter", 1)
    made = version(base, adapter, tmp_path / "version", "F32")
    loaded = Loaded.of(made, "fp32", block_size=8, adapters=((NAME, str(made)),))
    requests = [embedding(PROMPTS["61"], Pooling.MEAN, name, name) for name in ("", NAME)]
    crowd = vectors(loaded, requests, CROWD, budget=22)
    assert crowd == {each.id: vectors(loaded, [each])[each.id] for each in requests}
    adapted = peft.PeftModel.from_pretrained(base_model(base), adapter).get_base_model()
    for name, model in (("", base_model(base)), (NAME, adapted)):
        wanted = expected(model, PROMPTS["61"], Pooling.MEAN)
        torch.testing.assert_close(as_tensor(crowd[name]), wanted, atol=1e-3, rtol=0)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_without_kernels_the_same_vectors_to_rounding(
    load: Load, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [embedding(prompt, Pooling.MEAN, name) for name, prompt in PROMPTS.items()]
    native = vectors(load("llama", precision), requests)
    use(TORCH, monkeypatch)
    loaded = load("llama", precision)
    found = vectors(loaded, requests)
    for name, pooled in found.items():
        error = (as_tensor(pooled) - as_tensor(native[name])).norm() / as_tensor(native[name]).norm()
        assert error < (1e-5 if precision == "fp32" else 0.05)
    assert vectors(loaded, requests, CROWD, budget=22) == found


def test_an_encoder_is_refused(load: Load) -> None:
    core = load("t5", "fp32").core()
    core.add(embedding((1, 2, 3), Pooling.LAST))
    [output] = core.step()
    assert output.finish_reason is FinishReason.ERROR
