"""The Hadamard transform keeps products, mixes outliers away, and has the same bits everywhere."""

from __future__ import annotations

import pytest
import torch

from models.weights.hadamard import BLOCK, is_block, of_weights, transformed
from models.weights.int8 import quantize_rows
from models.weights.loading import CodedEmbedding
from service.engine.runner.linear import Int8Linear
from tests.kernels import LIBRARIES

SIZES = (1, 2, 5, 8, 16, 31, 64, 100, 576, 1000)
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_block_is_sylvesters_matrix() -> None:
    matrix = transformed(torch.eye(8), 8)
    small = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    assert torch.equal(matrix, torch.kron(torch.kron(small, small), small))


def test_a_rest_takes_the_largest_blocks_that_fit() -> None:
    """7 columns in blocks of 4: one of 4, one of 2, and a column that stays."""
    mixed = transformed(torch.ones(7), 4)
    assert mixed.tolist() == [4, 0, 0, 0, 2, 0, 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("block", BLOCKS)
def test_products_stay_the_same(size: int, block: int) -> None:
    x, weight = rows(3, size), rows(5, size)
    mixed = of_weights(weight, block)
    torch.testing.assert_close(transformed(x, block) @ mixed.T, x @ weight.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(transformed(mixed, block), weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LIBRARIES)
def test_kernels_have_the_same_bits(level: str) -> None:
    for size in SIZES:
        for block in BLOCKS:
            row = rows(size)
            assert torch.equal(LIBRARIES[level].hadamard(row, block), transformed(row, block)), (size, block)


def test_an_outlier_no_longer_takes_the_codes_of_the_others() -> None:
    """One column a hundred times larger than the others: the error of 8-bit rows falls to a quarter."""
    x, weight = rows(64, 256), rows(32, 256)
    x[:, 7] *= 100

    def error(block: int) -> float:
        values, scale = quantize_rows(of_weights(weight, block))
        layer = Int8Linear(values, scale, hadamard=block)
        return float((layer(x) - x @ weight.T).square().mean().sqrt())

    assert error(BLOCK) < 0.25 * error(1)


def test_an_embedding_reads_the_rows_of_a_head() -> None:
    weight = rows(20, 48)
    values, scale = quantize_rows(of_weights(weight, BLOCK))
    embedding = CodedEmbedding(Int8Linear(values, scale, hadamard=BLOCK), torch.float32, torch.tensor(3.0))
    ids = torch.tensor([[3, 19], [0, 3]])
    torch.testing.assert_close(embedding(ids), 3 * weight[ids], rtol=0, atol=0.2)
    assert not [*embedding.parameters(), *embedding.modules()][1:], "the head is not its own"


def test_blocks_are_powers_of_two() -> None:
    assert [size for size in range(-1, 20) if is_block(size)] == [1, 2, 4, 8, 16]
