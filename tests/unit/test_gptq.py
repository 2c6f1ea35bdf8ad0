"""GPTQ: errors compensate each other on the inputs that were measured, inside of every block."""

from __future__ import annotations

import pytest
import torch

from models.weights.gptq import loss_of, moments_of, quantize_groups, quantize_rows
from models.weights.hadamard import BLOCK, of_weights, transformed
from models.weights.int4 import encode
from models.weights.int8 import quantize_rows as nearest
from models.weights.int8 import row_scale


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(rows: int, columns: int) -> torch.Tensor:
    """Rows of columns that are up to a hundred times larger than others of their block."""
    return drawn(1, rows, columns) * torch.logspace(0, -2, BLOCK).repeat(-(-columns // BLOCK))[:columns]


@pytest.mark.parametrize(("outputs", "columns"), [(40, 576), (600, 128), (7, 100), (3, 1)])
def test_the_error_on_such_inputs_falls(outputs: int, columns: int) -> None:
    seen, new = inputs(2000, columns), inputs(4000, columns)[2000:]
    weight = of_weights(drawn(3, outputs, columns), BLOCK)
    codes, scale = quantize_rows(weight, BLOCK, moments_of(transformed(seen, BLOCK), BLOCK))
    plain, same_scale = nearest(weight)
    assert torch.equal(scale, same_scale) and codes.dtype is torch.int8

    def error(of: torch.Tensor) -> float:
        return float((transformed(new, BLOCK) @ (of.float() * scale[:, None] - weight).T).square().mean())

    assert error(codes) < 0.8 * error(plain) if columns > 1 else torch.equal(codes, plain)


def test_inputs_without_direction_and_without_anything_round_to_the_nearest() -> None:
    weight = drawn(4, 20, 64)
    for moments in (torch.eye(64)[None], torch.zeros(1, 64, 64)):
        assert torch.equal(quantize_rows(weight, 64, [moments])[0], nearest(weight)[0])


def test_moments_are_of_blocks() -> None:
    rows = drawn(5, 9, 10)
    first, second = moments_of(rows, 8)
    torch.testing.assert_close(first, (rows[:, :8].T @ rows[:, :8])[None])
    torch.testing.assert_close(second, (rows[:, 8:].T @ rows[:, 8:])[None])


@pytest.mark.parametrize(("columns", "group"), [(576, 32), (128, 32), (96, 32), (256, 128)])
def test_the_error_of_4_bit_weights_falls_too(columns: int, group: int) -> None:
    seen, new = inputs(2000, columns), inputs(4000, columns)[2000:]
    weight = of_weights(drawn(3, 300, columns), BLOCK)
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
    weight = drawn(4, 20, 64)
    scale = row_scale(weight)
    found = quantize_groups(weight, scale, 32, 64, [torch.eye(64)[None]])
    assert torch.equal(found.decoded(), encode(weight, scale, 32).decoded())
