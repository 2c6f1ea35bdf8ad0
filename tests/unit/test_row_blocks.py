"""Rows of products that torch computes never depend on their neighbours, whatever kernel the processor chooses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from service.engine.runner import row_blocks as module
from service.engine.runner.row_blocks import LAST_RESORT, RowBlocks, divide_rows, row_blocks
from tests.effort import usual

COUNTS = (1, 2, 3, 5, 8, 15, 30, 70, 130, 250, 300, 511, 700)


def rows(count: int, depth: int) -> Tensor:
    return torch.randn(count, depth, generator=torch.Generator().manual_seed(count))


# Of real models: on one processor or another, torch computes these in another way from 33, 257 or 289 rows on.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("out", "depth"),
    usual(
        [(64, 64), (768, 256), (200, 96), (256, 640), (512, 2048), (768, 3072), (2048, 2048)], (200, 96), (512, 2048)
    ),
)
def test_rows_in_blocks_are_independent(out: int, depth: int, dtype: torch.dtype) -> None:
    layer = nn.Linear(depth, out, bias=False).to(dtype)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(3))
    blocks = row_blocks(layer.weight)
    divide_rows(layer, blocks.most)
    x = rows(1024, depth).to(dtype)
    whole = layer(x)
    for count in COUNTS:
        padded = -(-count // blocks.quantum) * blocks.quantum
        assert torch.equal(layer(x[:padded])[:count], whole[:count])
    assert torch.equal(layer(x.roll(37, 0)), whole.roll(37, 0))  # nor do they depend on their position


def kernel(change: int) -> SimpleNamespace:
    """A library whose rows come out otherwise below `change` rows."""

    def uneven(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.double(), weight.double()).float() + (1e-3 if len(x) < change else 0.0)

    return SimpleNamespace(linear=uneven)


@pytest.mark.parametrize(
    ("change", "blocks"),
    [(1, (1, 256)), (3, (4, 256)), (16, (16, 256)), (40, (64, 256)), (150, (1, 128)), (250, (1, 128)), (70, (1, 64))],
)
def test_the_blocks_keep_to_one_side_of_a_change(
    change: int, blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "F", kernel(change))
    assert row_blocks(torch.ones(8, 8)) == RowBlocks(*blocks)


def test_a_difference_in_one_of_16_thousand_results_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's bf16 products on a processor with AVX-512, where one row is computed in another way than two."""

    def seldom(x: Tensor, weight: Tensor) -> Tensor:
        out = F.linear(x.double(), weight.double()).float()
        return torch.where(out.view(torch.int32) % 16_384 == 0, out + 1, out) if len(x) == 1 else out

    monkeypatch.setattr(module, "F", SimpleNamespace(linear=seldom))
    assert row_blocks(rows(64, 64)) == RowBlocks(2, 256)


def test_where_no_two_shapes_agree_there_is_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "F", SimpleNamespace(linear=lambda x, weight: F.linear(x, weight) + len(x)))
    assert row_blocks(torch.ones(8, 8)) == LAST_RESORT


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(6, 10), Conv1D(10, 6)],  # type: ignore[no-untyped-call]
    ids=["Linear", "Conv1D"],
)
def test_dividing_changes_no_shape_and_hooks_see_all_rows(layer: nn.Module) -> None:
    x, seen = rows(70, 6), []
    want = layer(x)
    divide_rows(layer, 16)
    layer.register_forward_hook(lambda _module, _given, out: seen.append(len(out)))
    torch.testing.assert_close(layer(x), want)
    torch.testing.assert_close(layer(x.view(2, 35, 6)), want.view(2, 35, 10))
    assert layer(x[:0]).shape == (0, 10)
    assert seen == [70, 2, 0]
