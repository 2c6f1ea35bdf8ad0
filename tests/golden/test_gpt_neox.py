"""GPT-NeoX as it is published: imported, quantized, computed by our decoders, and the same alone or in a crowd."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.loading import MappedWeights
from models.weights.quantize import quantize
from service.engine.kv_cache.kv_size import LayerShape
from service.engine.protocol.messages import SamplingParams
from service.engine.runner.forwards.forward import CannotServe
from service.engine.runner.loading.families import outline_of
from service.engine.runner.loading.model_work import model_work
from tests.checkpoints import VOCABULARY, save_tokenizer
from tests.golden.tiny import CONFIGS, SIZES, Loaded, answer, family, request, save_random, tensor_names

PRECISIONS = ("bf16", "int8", "int8-weight", "llm-int8", "int4")
NAMES = [name for name in CONFIGS if name.startswith("gpt_neox")]
PLANTED = (5, 40)
"""Columns of attention's input that are far larger than the others."""
LINEARS = ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
TEXTS = [[(11 * i * at + i) % VOCABULARY for i in range(60)] for at in (1, 2)]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("neox") / "data")


@pytest.fixture(scope="module", params=NAMES)
def parent(
    request: pytest.FixtureRequest, repository: Repository, tmp_path_factory: pytest.TempPathFactory
) -> Manifest:
    """A bf16 version of a tiny model, made of fp16 files with the buffers that older versions of the library saved:
    masks, frequencies, and a large negative number that is infinite in fp16."""
    directory = tmp_path_factory.mktemp(request.param)
    config = type(CONFIGS[request.param])(
        **CONFIGS[request.param].to_dict() | {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96}
    )
    save_tokenizer(save_random(config, directory, 7, torch.float16))
    weights = load_file(directory / "model.safetensors")
    for layer in range(config.num_hidden_layers):
        attention = f"gpt_neox.layers.{layer}.attention"
        weights[f"{attention}.bias"] = torch.ones(1, 1, 512, 512, dtype=torch.bool).tril()
        weights[f"{attention}.masked_bias"] = torch.tensor(-1e9).half()
        weights[f"{attention}.rotary_emb.inv_freq"] = torch.ones(2).half()
        weights[f"gpt_neox.layers.{layer}.input_layernorm.weight"][list(PLANTED)] *= 8
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return import_source(repository, str(directory), request.param, precision="bf16")


def _version(repository: Repository, parent: Manifest, precision: str) -> Path:
    if precision == "bf16":
        return repository.path(parent)
    return repository.path(quantize(repository, parent, precision, calibrate=lambda directory, window: TEXTS))


def test_linear_layers_are_quantized_and_nothing_unread_is_kept(repository: Repository, parent: Manifest) -> None:
    """The head too, under the library's name."""
    small = _version(repository, parent, "int8")
    linears = {f"gpt_neox.layers.{layer}.{name}" for layer in range(2) for name in LINEARS} | {"lm_head"}
    before, after = tensor_names(repository.path(parent)), tensor_names(small)
    assert {name.removesuffix(".weight_scale") for name in after if name.endswith("_scale")} == linears
    assert not any("masked" in name or "inv_freq" in name or name.endswith("attention.bias") for name in before | after)
    weights = MappedWeights(small, torch.float32, "int8")
    assert all(weights.linear(name).weight.dtype is torch.int8 for name in linears)


def test_outliers_stay_in_16_bits(repository: Repository, parent: Manifest) -> None:
    weights = MappedWeights(_version(repository, parent, "llm-int8"), torch.float32, "llm-int8")
    for layer in range(2):
        outliers = weights.linear(f"gpt_neox.layers.{layer}.attention.query_key_value").outliers
        assert set(PLANTED) <= set(outliers.columns.tolist())


def test_a_token_multiplies_with_its_linear_layers(repository: Repository, parent: Manifest) -> None:
    shapes = [LayerShape(4, 16, 16)] * 2
    layers = 2 * (4 * 64 * 64 + 2 * 64 * 96)
    for precision, width in (("bf16", 2), ("int8", 1)):
        work = model_work(str(_version(repository, parent, precision)), shapes, 1, 2)
        assert (work.weights, work.layer_bytes) == (layers, layers * width)
        assert (work.head_weights, work.head_bytes) == (64 * VOCABULARY, 64 * VOCABULARY * width)
        assert work.pair_flops == 4 * 2 * 64


@pytest.mark.parametrize("precision", PRECISIONS)
def test_logits_are_the_library_s(repository: Repository, parent: Manifest, precision: str) -> None:
    """Of a whole prompt, in mean: of the bf16 version within rounding, of the others within what they lose."""
    prompt = [(5 * j * j + 3) % VOCABULARY for j in range(90)]
    loaded = Loaded.of(_version(repository, parent, precision), precision, block_size=8)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    found = answer(loaded.core(33), {0: [request("a", prompt, params)]})["a"].prompt_logprobs
    model = transformers.AutoModelForCausalLM.from_pretrained(
        repository.path(parent), dtype=torch.float32, local_files_only=True
    )
    with torch.inference_mode():
        logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    want = logprobs[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    error = (torch.tensor([each.logprob for each in found]) - want).abs().mean()
    assert float(error) < {"bf16": 0.01, "int8-weight": 0.02, "int4": 0.2}.get(precision, 0.06)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "silu", "relu"])
def test_the_activation_acts_or_is_refused(activation: str, tmp_path: Path) -> None:
    config = transformers.GPTNeoXConfig(**SIZES, hidden_act=activation)
    loaded = Loaded.of(save_random(config, tmp_path, 1), "fp32", max_model_len=100)
    refused = [reason for reason in loaded.info.kernels if "does not compute" in reason]
    assert refused == ([f"the fused forward does not compute {activation}"] if activation == "relu" else [])
    assert loaded.info.forward == ("transformers" if refused else "decoder")


def test_rotary_positions_that_move_are_refused() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = family(CONFIGS["gpt_neox"]).from_config(transformers.GPTNeoXConfig(**SIZES, rope_parameters=rope))
    with pytest.raises(CannotServe, match="dynamic"):
        outline_of(model)
