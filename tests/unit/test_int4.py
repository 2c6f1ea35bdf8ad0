"""4-bit weights: what is stored decodes by the formula, and no simpler rule comes nearer to the exact weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.weights.int4 import Int4Weight, decoded, encode, error_of, fits, joined, rough_error
from models.weights.int8 import row_scale
from tests.effort import drawn


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
