"""The Hadamard transform mixes neighbouring columns of rows, so that none is far larger than the others in 8 bits.

Real models have columns a thousand times larger than the rest (Sun et al. 2024). One scale for a row then leaves few
codes for the other columns. A row times a Hadamard matrix, of +1 and -1, has no such columns, and the weights times the
same matrix give the same products (QuaRot, Ashkboos et al. 2024):

    x W^T = (x H) (W H / block)^T, because H H^T = block * identity

A row is mixed in blocks of a power of two. A rest takes the largest powers of two that fit: 576 columns are four blocks
of 128 and one of 64. Blocks of 1 are not mixed.
"""

from dataclasses import dataclass

import torch

BLOCK = 128
"""The block of new 8-bit versions. On SmolLM2-135M the KL to fp32 was 0.042 without, 0.0076, 0.0050 and 0.0048 with
blocks of 16, 64 and 128; larger ones gained nothing."""


def transformed(rows: torch.Tensor, block: int) -> torch.Tensor:
    """Returns x H, fp32 [.., columns], of rows x [.., columns]. Additions have the order of `native/src/hadamard.h`."""
    x = rows.float()
    return torch.cat([_mixed(x[..., at.start : at.end], at.block) for at in runs_of(x.shape[-1], block)], dim=-1)


def of_weights(weight: torch.Tensor, block: int) -> torch.Tensor:
    """Returns W H / block, fp32 [out, in], of weights W [out, in]; `transformed` of the result is W again."""
    return transformed(weight, block) / _sizes(weight.shape[-1], block)


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring blocks of one size: the columns from `start` to `end`, excluded."""

    start: int
    end: int
    block: int


def runs_of(columns: int, block: int) -> list[Run]:
    """Returns the runs of blocks that cover so many columns."""
    runs, at = [], 0
    while at < columns:
        whole = (columns - at) // block * block
        if whole:
            runs.append(Run(at, at + whole, block))
        at, block = at + whole, block // 2
    return runs


def is_block(block: int) -> bool:
    """Returns whether there is a transform of such blocks."""
    return block > 0 and block.bit_count() == 1


def _mixed(x: torch.Tensor, block: int) -> torch.Tensor:
    shape, step = x.shape, 1
    while step < block:
        pairs = x.reshape(*shape[:-1], -1, 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack((a + b, a - b), dim=-2)
        step *= 2
    return x.reshape(shape)


def _sizes(columns: int, block: int) -> torch.Tensor:
    """Returns the size of each column's block, fp32 [columns]."""
    return torch.cat([torch.full((at.end - at.start,), float(at.block)) for at in runs_of(columns, block)])
