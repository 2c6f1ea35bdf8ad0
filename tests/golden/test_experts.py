"""Mixtures of experts: imported, quantized, computed by the native decoder, and the same alone or in a crowd."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights import skeleton
from models.weights.experts import Expert
from models.weights.hadamard import of_weights
from models.weights.loading import MappedWeights
from models.weights.quantize import quantize
from service.engine.protocol.messages import SamplingParams
from service.engine.runner.native.library import library
from tests.checkpoints import VOCABULARY, save_tokenizer
from tests.effort import usual
from tests.golden.test_architectures import OF_EXPERTS
from tests.golden.tiny import CONFIGS, DEVICE, GROUPED, Loaded, answer, family, request, save_random
from tests.kernels import use


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("experts") / "data")


@pytest.fixture(scope="module", params=OF_EXPERTS)
def parent(
    request: pytest.FixtureRequest, repository: Repository, tmp_path_factory: pytest.TempPathFactory
) -> Manifest:
    """A bf16 version of a tiny model, as its own library saves it."""
    directory = tmp_path_factory.mktemp(request.param)
    config = type(CONFIGS[request.param])(**CONFIGS[request.param].to_dict() | {"vocab_size": VOCABULARY})
    save_tokenizer(save_random(config, directory, 7, torch.bfloat16))
    return import_source(repository, str(directory), request.param, precision="bf16")


def test_each_expert_has_its_weights(repository: Repository, parent: Manifest) -> None:
    """Of each part, within half a step; its bias, if any, as it was."""
    small = quantize(repository, parent)
    before = MappedWeights(repository.path(parent), torch.float32, "bf16")
    after = MappedWeights(repository.path(small), torch.float32, "int8")
    experts = skeleton.build(repository.path(parent)).experts.values()
    assert len(experts) in (3 * 4 * 2, 3 * 8)
    for linear in experts:
        was, now = before.linear(linear.module), after.linear(linear.module)
        assert was.weight.shape == (linear.out_features, linear.in_features)
        assert now.weight.dtype is torch.int8
        error = (now.weight.float() * now.scale[:, None] - of_weights(was.weight, now.hadamard)).abs()
        assert bool((error <= now.scale[:, None] / 2 * (1 + 1e-5)).all())
        assert (was.bias is None) == (now.bias is None)
        assert was.bias is None or torch.equal(was.bias, now.bias)


@pytest.mark.skipif(DEVICE != "cpu", reason="the library's router multiplies all rows at once")
@pytest.mark.parametrize("precision", usual(["bf16", "int8", "int8-weight", "int4"], "bf16", "int8"))
def test_a_crowd_changes_nothing(repository: Repository, parent: Manifest, precision: str, tmp_path: Path) -> None:
    """By the library's model and by the record of that."""
    version = parent if precision == "bf16" else quantize(repository, parent, precision)
    fields = {"block_size": 8, "findings": str(tmp_path / "r.record")}
    params = SamplingParams(max_tokens=6, logprobs=2)
    requests = [
        request(str(i), [(7 * i * j + 3 * j + i) % VOCABULARY for j in range(length)], params)
        for i, length in enumerate((1, 9, 33, 70, 70, 150))
    ]
    told = []
    for _ in range(2):
        loaded = Loaded.of(repository.path(version), precision, **fields)
        assert loaded.info.forward == ("transformers" if library() is None else "decoder")
        alone = {one.id: answer(loaded.core(caching=False), {0: [one]})[one.id] for one in requests}
        assert answer(loaded.core(90), {0: requests}) == alone
        told.append(alone)
    assert told[0] == told[1]


@pytest.mark.parametrize("precision", usual(["bf16", "int8", "int4"], "int8"))
def test_without_native_kernels(
    repository: Repository, parent: Manifest, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library computes, with 8-bit experts of ours. Its router depends on the crowd, and no draft is verified."""
    version = parent if precision == "bf16" else quantize(repository, parent, precision)
    use("torch", monkeypatch)
    loaded = Loaded.of(repository.path(version), precision, block_size=8)
    assert loaded.info.forward == "transformers"
    assert not loaded.runner.verifies_drafts
    params = SamplingParams(max_tokens=4, logprobs=1)
    requests = [request(str(i), [(5 * i + j) % VOCABULARY for j in range(9 + 7 * i)], params) for i in range(4)]
    found = answer(loaded.core(30), {0: requests})
    assert all(len(each.token_ids) == 4 for each in found.values())


def test_experts_of_a_layer_have_the_same_bits(repository: Repository, parent: Manifest) -> None:
    """One expert alone would lose three times the median; all experts together do not."""
    version = quantize(repository, parent, "int4")
    weights = MappedWeights(repository.path(version), torch.float32, "int4")
    bits: dict[str, set[torch.dtype]] = {}
    for linear in skeleton.build(repository.path(parent)).experts.values():
        expert = Expert.of_name(linear.module)
        assert expert is not None
        bits.setdefault(expert.fused, set()).add(weights.linear(linear.module).weight.dtype)
    assert all(len(each) == 1 for each in bits.values())


def test_experts_that_are_no_whole_panels_are_computed_by_the_library(tmp_path: Path) -> None:
    """Each expert's layers are native ones then, and their sums close to the library's."""
    sizes = {"vocab_size": VOCABULARY, "intermediate_size": 40, "hidden_size": 36, "head_dim": 16}
    config = transformers.MixtralConfig(**GROUPED | sizes | {"num_hidden_layers": 1}, num_local_experts=3)
    torch.manual_seed(3)
    family(config).from_config(config).save_pretrained(tmp_path)
    loaded = Loaded.of(tmp_path, "fp32", max_model_len=100)
    assert loaded.info.forward == "transformers"
    assert not loaded.runner.verifies_drafts
    assert any("no multiple of" in kernel for kernel in loaded.info.kernels) is (library() is not None)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, local_files_only=True)
    prompt = tuple((5 * j + 3) % VOCABULARY for j in range(20))
    told = answer(loaded.core(), {0: [request("a", prompt, SamplingParams(max_tokens=5))]})["a"]
    want = model.generate(  # type: ignore[misc]
        torch.tensor([prompt]), max_new_tokens=5, do_sample=False, eos_token_id=None
    )
    assert told.token_ids == tuple(want[0, len(prompt) :].tolist())
