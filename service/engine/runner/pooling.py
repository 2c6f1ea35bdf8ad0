"""Pooling makes one vector of a prompt's hidden states: those behind the final norm, as the library's
`last_hidden_state`. This module knows rows and sequences; no text.

chunk 1   | h0 h1 h2 |                     mean: every row is added to the sequence's sum, one after the other
chunk 2              | h3 h4 |             last: h4
chunk 3                       | h5 h6 |    cls:  h0, kept in the sum until the prompt is computed

Rows are added in the order of their positions, in doubles. So a vector's bits depend neither on where chunks end nor on
what else is in a step.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from service.engine.protocol.messages import Pooling
from service.engine.sequences.batch import Scheduled
from service.engine.sequences.sequence import Sequence

NO_ROWS: Final = range(0)


@dataclass(slots=True)
class FinalStates:
    """The packed rows of a step whose states behind the final norm are wanted. The forward fills in `states` [rows,
    hidden]."""

    rows: Tensor
    counts: tuple[int, ...]
    """How many of the rows are of each item."""
    states: Tensor | None = None

    @classmethod
    def of(cls, rows: Seq[range | None], device: torch.device) -> FinalStates | None:
        """Returns the rows of all items that pooling reads, as `pooled_rows` gives them; None if no item is pooled."""
        if all(each is None for each in rows):
            return None
        taken = [each or NO_ROWS for each in rows]
        joined = [row for each in taken for row in each]
        return cls(torch.tensor(joined, dtype=torch.long, device=device), tuple(map(len, taken)))

    def take(self, hidden: Tensor) -> None:
        """Keeps the wanted ones of all packed rows [rows of the step, hidden]."""
        self.states = hidden.to(self.rows.device).index_select(0, self.rows)

    @property
    def of_items(self) -> Seq[Tensor]:
        """Returns the states of each item, which may be none."""
        assert self.states is not None
        return torch.split(self.states, list(self.counts))


def pooled_rows(item: Scheduled, row: int, start: int, count: int) -> range | None:
    """Returns the packed rows that the item's pooling reads; None if it is not pooled. The item has
    `count` rows from `row` on, the first of them at position `start`."""
    if item.sequence.request.params.pooling is None:
        return None
    match item.sequence.request.params.pooling:
        case Pooling.MEAN:
            return range(row, row + count)
        case Pooling.CLS if start == 0:
            return range(row, row + 1)
        case Pooling.LAST if start + count == item.sequence.num_tokens:
            return range(row + count - 1, row + count)
    return NO_ROWS


def pooled(item: Scheduled, states: Tensor) -> bytes:
    """Takes in the wanted states [n, hidden] of an item. Returns its vector, as fp32 in the machine's order of bytes,
    once the prompt is computed. Returns no bytes before that, for a vector with a number that is not
    finite, and for an item that is not pooled."""
    sequence = item.sequence
    if sequence.request.params.pooling is None:
        return b""
    if len(states):
        _add(sequence, states.cpu())
    total = sequence.state_sum
    if sequence.num_computed_tokens + item.num_tokens < sequence.num_tokens or total is None:
        return b""
    count = sequence.num_tokens if sequence.request.params.pooling is Pooling.MEAN else 1
    vector = (torch.frombuffer(total, dtype=torch.double) / count).float()
    return vector.numpy().tobytes() if bool(vector.isfinite().all()) else b""


def _add(sequence: Sequence, states: Tensor) -> None:
    if sequence.state_sum is None:
        sequence.state_sum = array("d", bytes(8 * states.shape[1]))
    total = torch.frombuffer(sequence.state_sum, dtype=torch.double)
    for row in states.double():
        total += row
