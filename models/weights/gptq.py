"""GPTQ rounds weights so that the errors of a row compensate each other on the inputs that a layer gets.

Columns are rounded one after the other. The error of each is passed on to the columns behind it, by as much as their
inputs go together (Frantar et al. 2023). That needs the second moments of the inputs, E[x x^T]. They are measured
inside of the blocks of the Hadamard transform alone: on SmolLM2-135M, moments of all columns gained nothing more.

                        KL to fp32    mean |difference of logprobs|    (docs/decisions/precisions.md)
    nearest codes        0.0050        0.074
    GPTQ, in blocks      0.0028        0.055
    GPTQ, all columns    0.0029        0.055

4-bit weights need more text for it: moments of 1,420 tokens gained nothing over a search by the inputs' mean squares,
those of 9,600 did (loadtest/results/log.md, 2026-11-27).
"""

from collections.abc import Iterator

import torch

from models.weights.hadamard import Run, runs_of
from models.weights.int4 import Int4Weight, lines_of, nearest, packed, values_of
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
    for some, at, part, factors in _parts(weight, scale, block, moments):
        codes[some, at.start : at.end] = _columns(_rounded(part, factors)).to(torch.int8)
    return codes, scale


def quantize_groups(weight: torch.Tensor, scale: torch.Tensor, group: int, block: int, moments: Moments) -> Int4Weight:
    """Returns the 4-bit form of transformed weights [out, in], as `int4.encode` does for the outputs' scales
    [out], with codes of the least error on inputs of these moments. Blocks are whole groups."""
    out, depth = weight.shape
    codes = torch.empty(out, depth, dtype=torch.uint8)
    steps, bases = (torch.empty(out, depth // group) for _ in range(2))
    for some, at, part, factors in _parts(weight, scale, block, moments):
        lines = _Lines(part, group)
        _rounded(part, factors, lines)
        groups = slice(at.start // group, at.end // group)
        codes[some, at.start : at.end] = _columns(lines.codes).to(torch.uint8)
        steps[some, groups], bases[some, groups] = _columns(lines.steps), _columns(lines.bases)
    return packed(codes, steps, bases)


def loss_of(rounded: torch.Tensor, weight: torch.Tensor, block: int, moments: Moments) -> float:
    """Returns how much the outputs of `rounded` differ from those of transformed weights, both [out, in], on the rows
    of these moments: the squares of the differences, as a share of the outputs' own squares."""
    return _squares(rounded - weight, block, moments) / max(_squares(weight, block, moments), 1e-30)


def _squares(weight: torch.Tensor, block: int, moments: Moments) -> float:
    """Returns the sum of the squares of what weights [out, in] add to the outputs."""
    total = 0.0
    for at, of_run in zip(runs_of(weight.shape[1], block), moments, strict=True):
        part = weight[:, at.start : at.end].reshape(len(weight), -1, at.block)
        total += float((torch.einsum("obi,bij->obj", part, of_run) * part).sum())
    return total


def _parts(
    weight: torch.Tensor, scale: torch.Tensor, block: int, moments: Moments
) -> Iterator[tuple[slice, Run, torch.Tensor, torch.Tensor]]:
    """Yields outputs, a run of blocks, their weights in units of their scales [blocks, block, rows], and the run's
    factors."""
    for at, of_run in zip(runs_of(weight.shape[1], block), moments, strict=True):
        factors = _factors(of_run)
        for first in range(0, len(weight), _ROWS):
            some = slice(first, first + _ROWS)
            part = weight[some, at.start : at.end].float() / scale[some, None]
            yield some, at, part.T.reshape(-1, at.block, len(part)).contiguous(), factors


def _columns(blocks: torch.Tensor) -> torch.Tensor:
    """Returns [rows, columns] of [blocks, columns of a block, rows]."""
    return blocks.flatten(0, 1).T


class _Lines:
    """Scales and bases of groups of 4-bit weights, as each group's turn comes, and the codes of rounded columns."""

    def __init__(self, part: torch.Tensor, group: int) -> None:
        blocks, block, rows = part.shape
        self.group = group
        self.codes = torch.empty_like(part)
        self.steps, self.bases = (torch.empty(blocks, block // group, rows) for _ in range(2))

    def begin(self, left: torch.Tensor, i: int) -> None:
        """Draws the lines of the group whose first column is i, through what is `left` of its weights by now."""
        steps, bases = lines_of(left[:, i : i + self.group].mT.contiguous())
        self.steps[:, i // self.group], self.bases[:, i // self.group] = steps, bases

    def nearest(self, column: torch.Tensor, i: int) -> torch.Tensor:
        steps, bases = self.steps[:, i // self.group], self.bases[:, i // self.group]
        codes = nearest(column, steps, bases, out=self.codes[:, i])
        return values_of(codes, steps, bases)


def _factors(moments: torch.Tensor) -> torch.Tensor:
    """Returns for each block the rows of the upper Cholesky factor of the inverse moments, divided by its diagonal."""
    size = moments.shape[-1]
    damping = DAMPING * moments.diagonal(dim1=1, dim2=2).mean(1)
    identity = torch.eye(size, dtype=torch.float64)
    damped = moments.double() + damping.clamp(min=1e-30).double()[:, None, None] * identity
    upper: torch.Tensor = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    return (upper / upper.diagonal(dim1=1, dim2=2)[..., None]).float()


def _rounded(left: torch.Tensor, factors: torch.Tensor, lines: _Lines | None = None) -> torch.Tensor:
    """Returns the whole numbers [blocks, block, rows] of weights in units of their scales, which it changes: those of 8
    bits, or the nearest on the `lines` of 4-bit weights."""
    errors = torch.empty_like(left)
    for first, last in _steps(left.shape[1]):
        for i in range(first, last):
            if lines and i % lines.group == 0:
                lines.begin(left, i)
            column = left[:, i]
            near = lines.nearest(column, i) if lines else column.round().clamp_(-127, 127)
            error = torch.sub(column, near, out=errors[:, i])
            left[:, i + 1 : last].addcmul_(factors[:, i, i + 1 : last, None], error[:, None], value=-1)
        left[:, last:].baddbmm_(factors[:, first:last, last:].mT, errors[:, first:last], alpha=-1)
    return (left - errors).round_()


def _steps(block: int) -> Iterator[tuple[int, int]]:
    for first in range(0, block, _STEP):
        yield first, min(first + _STEP, block)
