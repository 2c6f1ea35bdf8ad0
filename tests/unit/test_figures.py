"""Figures of an engine: the peaks of its host, the rates of its kernels, and what a token of its model costs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from models.checkpoint.safetensors_file import Tensor, write_file
from models.imports.starter import WEIGHTS
from models.weights.shapes import Shape
from service.engine.kv_cache.kv_size import LayerShape
from service.engine.protocol.work import ModelWork, Peaks
from service.engine.runner import limits, peaks
from service.engine.runner.limits import DEPTH, OUTPUTS, rates, serving_ways, ways
from service.engine.runner.loading.model_work import model_work
from service.evaluation.host.measuring import BATCHES, PREFILL_ROWS, engine_times
from tests.checkpoints import VOCABULARY, save_bart, save_gpt2, save_llama, save_t5
from tests.kernels import KERNELS, LIBRARIES, TORCH, use

CPU = torch.device("cpu")


def test_they_are_measured_once_a_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "peaks.json"
    found, why = peaks.peaks_of("fp32", CPU, str(file))
    assert found is not None and why == ""
    assert found.dtype == "fp32" and found.flops > 1e8 and found.bytes_per_second > 1e8
    [kept] = json.loads(file.read_bytes()).values()
    assert kept == {"bytes_per_second": found.bytes_per_second, "flops": {"fp32": found.flops}}
    monkeypatch.setattr(limits, "ways_of", lambda dtype, memory: pytest.fail("measured again"))
    assert peaks.peaks_of("fp32", CPU, str(file)) == (found, "")


def test_another_host_measures_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ours = tmp_path / "peaks.json", 7.0e9
    file.write_text(json.dumps({"another host": {"bytes_per_second": 1.0, "flops": {"fp32": 1.0}}}))
    monkeypatch.setattr(peaks, "_cpu_flops", lambda dtype: ours)
    monkeypatch.setattr(peaks, "_bytes_per_second", lambda device: 3.0e9)
    expected = Peaks(dtype="fp32", flops=ours, bytes_per_second=3.0e9)
    assert peaks.peaks_of("fp32", CPU, str(file)) == (expected, "")
    assert len(json.loads(file.read_bytes())) == 2, "the other host's stay"
    monkeypatch.setattr(peaks, "_bytes_per_second", lambda device: pytest.fail("memory is the same for every dtype"))
    assert peaks.peaks_of("bf16", CPU, str(file))[0] == Peaks(dtype="bf16", flops=ours, bytes_per_second=3.0e9)


def test_threads_make_another_host(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = peaks._host(CPU)
        torch.set_num_threads(2)
        assert peaks._host(CPU) != one
    finally:
        torch.set_num_threads(before)


def test_other_kernels_of_the_same_instruction_set_make_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faster kernels beside the peak of slower ones would tell more than all of it."""
    hosts = set()
    for build in ("avx2-0123456789ab", "avx2-ba9876543210"):
        monkeypatch.setattr(peaks, "library", lambda build=build: SimpleNamespace(level="avx2", build=build))
        hosts.add(peaks._host(CPU))
    assert len(hosts) == 2


def test_without_a_file_they_are_measured_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = peaks.peaks_of("fp32", CPU, "")
    monkeypatch.setattr(limits, "ways_of", lambda dtype, memory: pytest.fail("measured again"))
    assert found is not None and peaks.peaks_of("fp32", CPU, "") == (found, "")


def test_peaks_that_cannot_be_measured_have_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(dtype: str, memory: torch.Tensor) -> list[limits.Way]:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(limits, "ways_of", broken)
    found, why = peaks.peaks_of("bf16", CPU, str(tmp_path / "peaks.json"))
    assert found is None
    assert why == "the peak of bf16 products could not be measured: could not create a primitive"


def test_a_damaged_or_unwritable_file_costs_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "_cpu_flops", lambda dtype: 5.0e9)
    monkeypatch.setattr(peaks, "_bytes_per_second", lambda device: 3.0e9)
    (tmp_path / "peaks.json").write_text("{")
    for file in (tmp_path / "peaks.json", tmp_path / "missing" / "peaks.json"):
        assert peaks.peaks_of("fp32", CPU, str(file))[0] is not None


@pytest.mark.parametrize(
    ("precision", "dtype", "kernel", "expected"),
    [
        ("fp32", "fp32", "native", "fp32"),
        ("bf16", "bf16", "native", "bf16"),
        ("int8", "bf16", "native", "int8"),
        ("llm-int8", "bf16", "onednn", "int8"),
        ("int8", "bf16", "dequantized", "bf16"),
        ("int8-weight", "bf16", "native", "bf16"),
    ],
)
def test_the_dtype_is_that_of_the_products(
    precision: str, dtype: str, kernel: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks, "int8_kernel", lambda device: kernel)
    assert peaks.products_dtype(precision, dtype, CPU) == expected


COUNTS = (*BATCHES, PREFILL_ROWS)
NUMBER = torch.full((4,), 0x3C, dtype=torch.uint8).view(torch.float32).item()


@pytest.fixture(scope="module")
def memory() -> torch.Tensor:
    return torch.full((4 * OUTPUTS * DEPTH,), 0x3C, dtype=torch.uint8)


@pytest.mark.parametrize("kernels", KERNELS)
def test_ways_multiply_by_all_weights(kernels: str, memory: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kernels, monkeypatch)
    for way in ways(memory):
        if way.name.startswith(("float32", "bfloat16")):
            product = way.multiply(torch.ones(3, DEPTH), way.layers - 1)
            assert isinstance(product, torch.Tensor) and product.shape == (3, OUTPUTS)
            assert product.float().mean().item() == pytest.approx(NUMBER * DEPTH, rel=0.01), way.name
        assert way.operations(3) == 2 * 3 * OUTPUTS * DEPTH * way.layers
    native = LIBRARIES.get(kernels)
    assert len(ways(memory)) == (3 if native is None else 6 + native.has_int4)


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_precision_has_a_rate(kernels: str, memory: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kernels, monkeypatch)
    found = {name: rates(way, COUNTS[:2], 0.001) for name, way in serving_ways(memory).items()}
    assert found.keys() == {"int8", "bf16", "fp32", "int8-weight", "int4"}
    assert all(rate > 0 for each in found.values() for rate in each.values())


@pytest.mark.parametrize("kernels", [KERNELS[0], TORCH])
def test_the_rest_of_a_step_is_measured(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kernels, monkeypatch)
    times = engine_times(dict.fromkeys(COUNTS, 1e6))
    assert tuple(times.step) == BATCHES and tuple(times.value) == COUNTS
    assert all(seconds >= 0 for seconds in (times.layer, *times.step.values(), *times.value.values()))


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
