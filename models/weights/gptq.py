"""GPTQ rounds 8-bit weights so that the errors of a row compensate each other on the inputs that a layer gets.

Columns are rounded one after the other. The error of each is passed on to the columns behind it, by as much as their
inputs go together (Frantar et al. 2023). That needs the second moments of the inputs, E[x x^T]. They are measured
inside of the blocks of the Hadamard transform alone: on SmolLM2-135M, moments of all columns gained nothing more.

                        KL to fp32    mean |difference of logprobs|    (docs/decisions/0065)
    nearest codes        0.0050        0.074
    GPTQ, in blocks      0.0028        0.055
    GPTQ, all columns    0.0029        0.055
"""

from collections.abc import Iterator

import torch

from models.weights.hadamard import Run, runs_of
from models.weights.int8 import row_scale

DAMPING = 0.01
"""Part of the mean second moment that is added to each: inputs that were never seen keep some weight."""
_ROWS = 256
"""Outputs that are rounded together: their errors stay in the processor's cache."""
_STEP = 32
"""Columns whose errors are passed on one by one; to the columns behind these they are passed on in one product."""

Moments = list[torch.Tensor]
"""Of each run of blocks: the mean of x x^T, fp32 [blocks, block, block]."""


def moments_of(rows: torch.Tensor, block: int) -> Moments:
    """Returns the second moments of transformed rows [n, in], summed over the rows."""
    found = []
    for at in runs_of(rows.shape[1], block):
        part = rows[:, at.start : at.end].reshape(len(rows), -1, at.block)
        found.append(torch.einsum("nbi,nbj->bij", part, part))
    return found


def quantize_rows(weight: torch.Tensor, block: int, moments: Moments) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns int8 [out, in] and scales fp32 [out] of transformed weights [out, in], as
    `models.weights.int8.quantize_rows` does, with codes of the least error on inputs of these moments."""
    scale = row_scale(weight)
    codes = torch.empty(weight.shape, dtype=torch.int8)
    for at, of_run in zip(runs_of(weight.shape[1], block), moments, strict=True):
        factors = _factors(of_run)
        for first in range(0, len(weight), _ROWS):
            some = slice(first, first + _ROWS)
            part = weight[some, at.start : at.end].float() / scale[some, None]
            codes[some, at.start : at.end] = _rounded(part, at, factors)
    return codes, scale


def _factors(moments: torch.Tensor) -> torch.Tensor:
    """Returns for each block the rows of the upper Cholesky factor of the inverse moments, divided by its diagonal."""
    size = moments.shape[-1]
    damping = DAMPING * moments.diagonal(dim1=1, dim2=2).mean(1)
    identity = torch.eye(size, dtype=torch.float64)
    damped = moments.double() + damping.clamp(min=1e-30).double()[:, None, None] * identity
    upper: torch.Tensor = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    return (upper / upper.diagonal(dim1=1, dim2=2)[..., None]).float()


def _rounded(part: torch.Tensor, at: Run, factors: torch.Tensor) -> torch.Tensor:
    """Returns the codes int8 [rows, columns] of a run's weights in units of their scales."""
    left = part.T.reshape(-1, at.block, len(part)).contiguous()  # [blocks, block, rows]
    errors = torch.empty_like(left)
    for first, last in _steps(at.block):
        for i in range(first, last):
            column = left[:, i]
            error = torch.sub(column, column.round().clamp_(-127, 127), out=errors[:, i])
            left[:, i + 1 : last].addcmul_(factors[:, i, i + 1 : last, None], error[:, None], value=-1)
        left[:, last:].baddbmm_(factors[:, first:last, last:].mT, errors[:, first:last], alpha=-1)
    return (left - errors).round_().to(torch.int8).flatten(0, 1).T


def _steps(block: int) -> Iterator[tuple[int, int]]:
    for first in range(0, block, _STEP):
        yield first, min(first + _STEP, block)
