"""Masks of a step's rows, computed by a thread beside the forward. This module knows sequences and their
constraints; no tensors.

engine's thread   pack ─▶ forward ─────────────────▶ sample with the masks
mask thread       └▶ what each row's grammar allows ─┘
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from service.engine.sequences.batch import Scheduled
from service.engine.sequences.constraint import Allowed
from service.engine.sequences.sequence import Sequence

Masks = Mapping[Sequence, Seq[Allowed | None]]
"""What is allowed for each row that a sequence with a constraint samples."""


class PendingMasks:
    """Masks that may not be there yet."""

    def __init__(self, future: Future[Masks] | None = None) -> None:
        self._future = future

    def result(self) -> Masks:
        """Waits for them."""
        return {} if self._future is None else self._future.result()


NO_MASKS: Final = PendingMasks()


class MaskThread:
    """Owns the thread, which starts with the first sequence that has a grammar."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, items: Seq[Scheduled]) -> PendingMasks:
        """Begins the masks of the items that sample. Nothing may change their constraints before `result`."""
        concerned = [item for item in items if item.sequence.constraint is not None and item.samples]
        if not concerned:
            return NO_MASKS
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="masks")
        return PendingMasks(self._pool.submit(_masks, concerned))


def _masks(items: Seq[Scheduled]) -> Masks:
    found: dict[Sequence, Seq[Allowed | None]] = {}
    for item in items:
        constraint = item.sequence.constraint
        assert constraint is not None
        found[item.sequence] = constraint.allowed(item.draft_token_ids)
    return found
