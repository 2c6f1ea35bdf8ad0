"""Blocks of GGUF files: stored by name, and multiplied as they are on every instruction set that this processor has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.checkpoint.block_types import TYPES, stored_name, type_of
from models.weights.blocks import BlockWeight, taken
from service.engine.runner.block_linear import BlockLinear
from service.engine.runner.forwards.decoder import fuse
from service.engine.runner.native.library import Library
from service.engine.runner.native.linear import NativeLinear
from tests.block_weights import random_blocks as blocks
from tests.kernels import LIBRARIES, use

SHAPES = [(48, 256), (70, 512), (1, 256), (129, 1024), (600, 768)]
"""Outputs that end inside of a panel, and depths of whole blocks of every type."""
COUNTS = (*range(1, 35), 64, 65, 70, 128, 130, 257)


@pytest.fixture(params=LIBRARIES)
def kernels(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[str(request.param)]


def layer(kernels: Library, *weights: BlockWeight, bias: Tensor | None = None) -> NativeLinear:
    return NativeLinear(kernels, [SimpleNamespace(weight=weight, bias=bias) for weight in weights])


def rows(count: int, depth: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randn(count, depth, generator=generator)
    drawn[:, ::97] *= 300  # outliers, as real models have them
    drawn[:, :32] = 0
    return drawn


def rounded(x: Tensor) -> Tensor:
    """Rows as the kernels read them: 8 bits for each group of 32."""
    groups = x.view(len(x), -1, 32)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) * torch.tensor(1.0 / 127)
    return ((groups * (1 / scale)).round() * scale.double()).view(x.shape)


@pytest.mark.parametrize("kind", TYPES)
def test_products_are_those_of_the_formula(kernels: Library, kind: str) -> None:
    for out, depth in SHAPES:
        weight, x, bias = blocks(out, depth, kind), rows(19, depth), torch.randn(out)
        want = rounded(x) @ weight.dequantized().double().T + bias
        scale = rounded(x).abs() @ weight.dequantized().double().abs().T
        error = ((layer(kernels, weight, bias=bias)(x) - want).abs() / scale).max()
        assert float(error) < 1e-5, (out, depth)


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_does_not_depend_on_the_others(kernels: Library, kind: str) -> None:
    for out, depth in SHAPES:
        made, x = layer(kernels, blocks(out, depth, kind)), rows(257, depth)
        whole = made(x)
        assert [count for count in COUNTS if not torch.equal(made(x[:count]), whole[:count])] == [], (out, depth)
        assert torch.equal(made(x[200:203]), whole[200:203])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_does_not_depend_on_the_threads(kernels: Library, threads: int) -> None:
    made, x = layer(kernels, blocks(600, 768, "Q4_K"), blocks(40, 768, "Q4_K")), rows(130, 768)
    whole, before = made(x), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in (1, 2, 7, 130):
            assert torch.equal(made(x[:count]), whole[:count]), count
    finally:
        torch.set_num_threads(before)


def test_parts_of_several_types_are_joined_where_panels_allow(kernels: Library) -> None:
    """As a file's queries in 4 bits and values in 6; else all become bf16."""
    x = rows(9, 256)
    query, value = blocks(64, 256, "Q4_K"), blocks(70, 256, "Q6_K")
    both = layer(kernels, query, query, value)
    assert both.packed.nbytes < 1.3 * (2 * query.nbytes + value.nbytes * 96 / 70)
    assert torch.equal(both(x), torch.cat([layer(kernels, each)(x) for each in (query, query, value)], dim=1))
    mixed = layer(kernels, value, query)
    assert mixed.dtype is torch.bfloat16
    want = F.linear(x, torch.cat([each.dequantized(torch.bfloat16) for each in (value, query)]).float())
    assert float((mixed(x) - want).abs().max() / want.abs().max()) < 0.02
    dense = SimpleNamespace(weight=torch.zeros(8, 256, dtype=torch.bfloat16), bias=None)
    assert NativeLinear(kernels, [SimpleNamespace(weight=query, bias=None), dense]).dtype is torch.bfloat16


def test_the_memory_is_the_files(kernels: Library) -> None:
    for kind in TYPES:
        weight = blocks(64, 512, kind)
        assert layer(kernels, weight).packed.nbytes <= 1.03 * weight.nbytes, kind


def test_rows_that_are_no_numbers_say_so_and_harm_nobody(kernels: Library) -> None:
    for kind in TYPES:
        made, x = layer(kernels, blocks(48, 256, kind)), rows(5, 256)
        clean = made(x)
        for wrong in (float("nan"), float("inf"), float("-inf")):
            spoilt = x.clone()
            spoilt[2, 71] = wrong
            out = made(spoilt)
            assert not bool(out[2].isfinite().any())
            assert torch.equal(out[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("kind", TYPES)
def test_without_kernels_blocks_are_dequantized(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use("torch", monkeypatch)
    weight, x = blocks(48, 256, kind), rows(5, 256).bfloat16()
    bias = torch.ones(48, dtype=torch.bfloat16)
    made = BlockLinear(weight, bias)
    assert torch.equal(made(x), F.linear(x, weight.dequantized(torch.bfloat16)) + 1)
    fused: Any = fuse([BlockLinear(weight), BlockLinear(weight, bias)])
    want = F.linear(x, weight.dequantized(torch.bfloat16))
    assert torch.equal(fused(x).bfloat16(), torch.cat((want, want + 1), dim=1))


def test_stored_names_tell_the_type() -> None:
    name = stored_name("model.layers.0.mlp.up_proj", "Q4_K")
    assert name == "model.layers.0.mlp.up_proj.weight_q4_k"
    assert type_of(name) == ("model.layers.0.mlp.up_proj", "Q4_K")
    for other in ("a.weight", "a.weight_scale", "a.weight_q3_k", ".weight"):
        assert type_of(other) is None
    stored = {"a.weight_q8_0": torch.zeros(4, 68, dtype=torch.uint8), "b.weight": torch.zeros(1)}
    found = taken(list(stored), stored.pop)
    assert {module: (each.type, tuple(each.shape)) for module, each in found.items()} == {"a": ("Q8_0", (4, 64))}
    assert list(stored) == ["b.weight"]
