"""Rounding of weights: 4 bits, GPTQ and the Hadamard transform, each by its formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.weights.gptq import loss_of, moments_of, quantize_groups, quantize_rows
from models.weights.hadamard import BLOCK, is_block, of_weights, transformed
from models.weights.int4 import Int4Weight, decoded, encode, error_of, fits, joined, rough_error
from models.weights.int8 import quantize_rows as nearest
from models.weights.int8 import row_scale
from models.weights.loading import CodedEmbedding
from service.engine.runner.linear import Int8Linear
from tests.effort import drawn
from tests.kernels import LIBRARIES


def weights(out: int, depth: int, seed: int = 0, heavy: bool = False) -> Tensor:
    torch.manual_seed(seed)
    return torch.distributions.StudentT(3.0).sample((out, depth)) if heavy else torch.randn(out, depth)


def by_formula(coded: Int4Weight) -> list[list[int]]:
    """One weight at a time, in whole numbers."""
    found = []
    for codes, scales, bases in zip(
        coded.codes.tolist(), coded.group_scale.tolist(), coded.group_base.tolist(), strict=True
    ):
        each = [half for byte in codes for half in (byte & 15, byte >> 4)]
        found.append([bases[k // coded.group] + (code * scales[k // coded.group] >> 4) for k, code in enumerate(each)])
    return found


@given(st.integers(0, 1 << 30), st.sampled_from((32, 128)), st.integers(1, 9), st.integers(1, 3), st.booleans())
@settings(max_examples=drawn(20, 200), deadline=None)
def test_it_decodes_by_the_formula_to_weights_of_8_bits(
    seed: int, group: int, out: int, groups: int, heavy: bool
) -> None:
    weight = weights(out, groups * group, seed, heavy)
    coded = encode(weight, row_scale(weight), group)
    found = by_formula(coded)
    assert coded.decoded().tolist() == found
    assert all(-128 <= value <= 127 for row in found for value in row), "nothing wraps around"
    assert (coded.shape, coded.group, len(coded)) == (weight.shape, group, out)
    assert coded.nbytes == weight.numel() // 2 + 2 * weight.numel() // group


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("group", [32, 128])
def test_the_search_beats_rounding_between_the_extremes(group: int, heavy: bool) -> None:
    """The plain rule is exact arithmetic with 16 even steps from the group's least weight to its greatest."""
    weight = weights(96, 1024, heavy=heavy)
    scale = row_scale(weight)
    x = weight.view(96, -1, group)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = float((((x - low) / step).round() * step + low - x).square().sum() / x.square().sum())
    error = error_of(encode(weight, scale, group), weight, scale)
    assert error < 0.92 * plain
    assert error < rough_error(weight, scale, group) < 1.3 * plain


def test_what_matters_more_becomes_more_exact() -> None:
    weight, importance = weights(64, 256), torch.ones(256)
    importance[::8] = 50.0
    scale = row_scale(weight)
    even, weighed = encode(weight, scale, 32), encode(weight, scale, 32, importance)
    assert error_of(weighed, weight, scale, importance) < 0.8 * error_of(even, weight, scale, importance)
    assert error_of(weighed, weight, scale) > error_of(even, weight, scale)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e-30, -3e4])
def test_weights_that_are_all_equal_are_exact(value: float) -> None:
    weight = torch.full((3, 64), value)
    coded = encode(weight, row_scale(weight), 32)
    torch.testing.assert_close(coded.decoded() * row_scale(weight)[:, None], weight, rtol=1e-6, atol=1e-30)


def test_inputs_that_never_come_or_overflow_are_no_trouble() -> None:
    weight = weights(4, 64)
    broken = torch.ones(64)
    broken[3] = torch.inf
    for importance in (torch.zeros(64), torch.full((64,), 1e-38), broken, broken - broken):
        assert error_of(encode(weight, row_scale(weight), 32, importance), weight, row_scale(weight)) < 0.02


def test_layers_are_joined_in_the_fewest_bits_that_suit_all() -> None:
    first, second = (encode(weights(out, 128), torch.full((out,), 0.05), 32) for out in (5, 7))
    both = joined([first, second])
    assert isinstance(both, Int4Weight)
    assert torch.equal(both.decoded(), torch.cat([first.decoded(), second.decoded()]))
    other = encode(weights(2, 128), torch.full((2,), 0.05), 128)
    plain = torch.zeros(3, 128, dtype=torch.int8)
    mixed = joined([first, other, plain])
    assert torch.equal(decoded(mixed), torch.cat([first.decoded(), other.decoded(), plain]))
    assert not isinstance(mixed, Int4Weight)


def test_only_whole_groups_fit() -> None:
    assert fits(64, 32) and not fits(48, 32) and not fits(64, 128)


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(rows: int, columns: int) -> torch.Tensor:
    """Rows of columns that are up to a hundred times larger than others of their block."""
    return noise(1, rows, columns) * torch.logspace(0, -2, BLOCK).repeat(-(-columns // BLOCK))[:columns]


@pytest.mark.parametrize(("outputs", "columns"), [(40, 576), (600, 128), (7, 100), (3, 1)])
def test_the_error_on_such_inputs_falls(outputs: int, columns: int) -> None:
    seen, new = inputs(2000, columns), inputs(4000, columns)[2000:]
    weight = of_weights(noise(3, outputs, columns), BLOCK)
    codes, scale = quantize_rows(weight, BLOCK, moments_of(transformed(seen, BLOCK), BLOCK))
    plain, same_scale = nearest(weight)
    assert torch.equal(scale, same_scale) and codes.dtype is torch.int8

    def error(of: torch.Tensor) -> float:
        return float((transformed(new, BLOCK) @ (of.float() * scale[:, None] - weight).T).square().mean())

    assert error(codes) < 0.8 * error(plain) if columns > 1 else torch.equal(codes, plain)


def test_inputs_without_direction_and_without_anything_round_to_the_nearest() -> None:
    weight = noise(4, 20, 64)
    for moments in (torch.eye(64)[None], torch.zeros(1, 64, 64)):
        assert torch.equal(quantize_rows(weight, 64, [moments])[0], nearest(weight)[0])


def test_moments_are_of_blocks() -> None:
    rows = noise(5, 9, 10)
    first, second = moments_of(rows, 8)
    torch.testing.assert_close(first, (rows[:, :8].T @ rows[:, :8])[None])
    torch.testing.assert_close(second, (rows[:, 8:].T @ rows[:, 8:])[None])


@pytest.mark.parametrize(("columns", "group"), [(576, 32), (128, 32), (96, 32), (256, 128)])
def test_the_error_of_4_bit_weights_falls_too(columns: int, group: int) -> None:
    seen, new = inputs(2000, columns), inputs(4000, columns)[2000:]
    weight = of_weights(noise(3, 300, columns), BLOCK)
    scale, moments = row_scale(weight), moments_of(transformed(seen, BLOCK), BLOCK)
    coded, plain = quantize_groups(weight, scale, group, BLOCK, moments), encode(weight, scale, group)
    assert (coded.shape, coded.group) == (plain.shape, group)

    def error(of: torch.Tensor) -> float:
        return float((transformed(new, BLOCK) @ (of * scale[:, None] - weight).T).square().mean())

    assert error(coded.decoded()) < 0.8 * error(plain.decoded())
    tested = transformed(new, BLOCK)
    blockwise = loss_of(coded.decoded() * scale[:, None], weight, BLOCK, moments_of(tested, BLOCK))
    whole = error(coded.decoded()) / float((tested @ weight.T).square().mean())
    assert blockwise == pytest.approx(whole, rel=0.3), "blocks of such inputs are hardly correlated"


def test_4_bit_codes_of_inputs_without_direction_are_those_of_the_search() -> None:
    weight = noise(4, 20, 64)
    scale = row_scale(weight)
    found = quantize_groups(weight, scale, 32, 64, [torch.eye(64)[None]])
    assert torch.equal(found.decoded(), encode(weight, scale, 32).decoded())


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
        values, scale = nearest(of_weights(weight, block))
        layer = Int8Linear(values, scale, hadamard=block)
        return float((layer(x) - x @ weight.T).square().mean().sqrt())

    assert error(BLOCK) < 0.25 * error(1)


def test_an_embedding_reads_the_rows_of_a_head() -> None:
    weight = rows(20, 48)
    values, scale = nearest(of_weights(weight, BLOCK))
    embedding = CodedEmbedding(Int8Linear(values, scale, hadamard=BLOCK), torch.float32, torch.tensor(3.0))
    ids = torch.tensor([[3, 19], [0, 3]])
    torch.testing.assert_close(embedding(ids), 3 * weight[ids], rtol=0, atol=0.2)
    assert not [*embedding.parameters(), *embedding.modules()][1:], "the head is not its own"


def test_blocks_are_powers_of_two() -> None:
    assert [size for size in range(-1, 20) if is_block(size)] == [1, 2, 4, 8, 16]
