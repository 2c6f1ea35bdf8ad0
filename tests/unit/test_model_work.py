"""The cost of a token, from a version's files: the weights that one token multiplies with, by architecture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.checkpoint.safetensors_file import Tensor, write_file
from models.imports.starter import WEIGHTS
from models.weights.shapes import Shape
from service.engine.kv_cache.kv_size import LayerShape
from service.engine.protocol.work import ModelWork
from service.engine.runner.loading.model_work import model_work
from tests.checkpoints import VOCABULARY, save_bart, save_gpt2, save_llama, save_t5

HEAD = LayerShape(kv_heads=2, key_dim=8, value_dim=8)


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_is_what_its_config_says(tmp_path: Path, tied: bool) -> None:
    directory = save_llama(tmp_path / "model", tied=tied)
    shape = Shape.of_config("llama", json.loads((directory / "config.json").read_bytes()))
    work = model_work(str(directory), [HEAD], 64, 2)
    assert work.weights == shape.layers * shape.layer_weights
    assert work.head_weights == 32 * VOCABULARY
    assert work.pair_flops == 4 * shape.layers * shape.heads * shape.head_dim
    assert (work.layer_bytes, work.head_bytes, work.kv_bytes) == (2 * work.weights, 2 * 32 * VOCABULARY, 64)
    assert work.encoder_weights == work.expert_bytes == 0
    assert model_work(str(directory), [HEAD], 64, 4).layer_bytes == 4 * work.weights


def test_the_demo_model_and_its_int8_bytes() -> None:
    shape = Shape.of_config("demo", json.loads((WEIGHTS / "config.json").read_bytes()))
    work = model_work(str(WEIGHTS), [LayerShape(shape.kv_heads, shape.head_dim, shape.head_dim)] * shape.layers, 1, 2)
    assert work.weights == shape.layers * shape.layer_weights
    assert work.head_weights == shape.head_weights
    assert work.pair_flops == 4 * shape.layers * shape.heads * shape.head_dim


def test_a_gpt2_keeps_its_matrices_the_other_way_round(tmp_path: Path) -> None:
    work = model_work(str(save_gpt2(tmp_path / "model")), [HEAD], 1, 2)
    assert work.weights == 32 * 96 + 32 * 32 + 2 * 32 * 128, "embeddings of tokens and positions are none"
    assert work.pair_flops == 4 * 32


def test_an_encoder_has_its_own_weights(tmp_path: Path) -> None:
    square = 32 * 32
    t5 = model_work(str(save_t5(tmp_path / "t5")), [HEAD], 1, 2)
    assert t5.encoder_weights == 4 * square + 2 * 32 * 48 + 2 * square, "and the products for cross-attention"
    assert t5.weights == 4 * square + 2 * square + 2 * 32 * 48
    bart = model_work(str(save_bart(tmp_path / "bart")), [HEAD] * 2, 1, 2)
    assert bart.encoder_weights == 4 * square + 2 * 32 * 48 + 2 * (2 * square)
    assert bart.weights == 2 * (4 * square + 2 * square) + 2 * 2 * 32 * bart_width(tmp_path / "bart")
    assert bart.encoder_pair_flops == 4 * 32
    assert bart.pair_flops == 2 * 4 * 32


def bart_width(directory: Path) -> int:
    width: int = json.loads((directory / "config.json").read_bytes())["decoder_ffn_dim"]
    return width


def test_of_a_mixture_of_experts_those_that_a_token_uses(tmp_path: Path) -> None:
    experts = [Tensor(f"model.layers.0.mlp.experts.{n}.w1.weight", "I8", (8, 16)) for n in range(4)]
    experts += [Tensor(f"model.layers.0.mlp.experts.{n}.w1.group_scale", "U8", (8, 2)) for n in range(4)]
    others = [
        Tensor("model.embed_tokens.weight", "BF16", (50, 8)),
        Tensor("model.layers.0.self_attn.q_proj.weight", "BF16", (8, 8)),
        Tensor("model.layers.0.input_layernorm.weight", "BF16", (8,)),
        Tensor("lm_head.weight", "BF16", (50, 8)),
    ]
    tensors = [*experts, *others]
    sizes = {each.name: each.bytes for each in tensors}
    write_file(tmp_path / "model.safetensors", tensors, lambda name: memoryview(bytes(sizes[name])), {})
    config = {"hidden_size": 8, "vocab_size": 50, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_local_experts": 4, "num_experts_per_tok": 2}))
    work = model_work(str(tmp_path), [LayerShape(2, 4, 4)], 1, 2)
    assert work.weights == 64 + 2 * 128
    assert (work.layer_bytes, work.expert_bytes, work.active_expert_bytes) == (128, 576, 288)


def test_files_that_do_not_say_it_count_nothing(tmp_path: Path) -> None:
    assert model_work(str(tmp_path), [HEAD], 1, 2) == ModelWork()
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert model_work(str(tmp_path), [HEAD], 1, 2) == ModelWork()
