"""The window pool owns the window blocks: where the layers with a sliding window keep a block's keys and values.

A layer with a sliding window reads the last `window` tokens only. So a block needs a window block while a sequence's
next token sees the block, and not longer. The content stays there until another block needs the place. The place of the
block that was needed longest ago goes first.

    block (all other layers)   | 0 | 1 | 2 | 3 | 4 | 5 |      one table, as long as the sequence
    window block               | - | - | 9 | 2 | 7 | 4 |      only what the next token sees, and what nobody needs yet

What a running sequence may need at once is reserved: for its whole prompt when it begins, and for more as it grows. So
a prompt under way always gets its window blocks. A sequence for which they would not do waits, and one that grows may
preempt another, as for blocks.

It knows block numbers and counts only: no contents, sequences or tensors.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Final

DRAFTS: Final = 16
"""The most tokens behind a sequence's last known one in a step."""


def blocks_of_sequence(window: int, block_size: int, num_tokens: int = sys.maxsize) -> int:
    """Returns the most window blocks that a sequence of at most `num_tokens` tokens needs at once, but for those of a
    step's tokens. It needs those of the `window` tokens before a step. Its first and its last block, the rounding of
    both, and the delay in letting go are five blocks at most."""
    return min((window + DRAFTS) // block_size + 5, (num_tokens + DRAFTS) // block_size + 1)


def blocks_needed(window: int, block_size: int, step_tokens: int, sequences: int) -> int:
    """Returns the most window blocks that so many sequences need at once, with those of a step's tokens."""
    return sequences * blocks_of_sequence(window, block_size) + -(-step_tokens // block_size)


class NoWindowBlock(AssertionError):
    """Every window block is needed: the pool is smaller than what the running sequences see. A defect of this
    program."""


class WindowPool:
    """Gives window blocks to blocks. Every operation takes O(1)."""

    def __init__(self, num_blocks: int, window: int, block_size: int, step_tokens: int) -> None:
        """`window` is the number of tokens that a token sees, itself included. A step has `step_tokens` at most. Raises
        ValueError unless all are positive, and one sequence has room."""
        if min(num_blocks, window, block_size, step_tokens) < 1:
            raise ValueError(f"a window of {window} tokens in {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.window = window
        self._block_size = block_size
        self._unreserved = num_blocks - blocks_needed(window, block_size, step_tokens, sequences=0)
        self._reserved: dict[str, int] = {}
        if num_blocks < blocks_needed(window, block_size, step_tokens, sequences=1):
            raise ValueError(f"{num_blocks} window blocks are too few for one sequence and {step_tokens} tokens a step")
        self._free: deque[int] = deque(range(num_blocks))
        self._place_of: dict[int, int] = {}
        self._needed: dict[int, int] = {}
        self._idle: dict[int, None] = {}  # blocks with a place that nobody needs, longest ago first

    @property
    def scratch(self) -> int:
        """Stands in a table for a window block that is gone: the block behind the last one, which no row reads."""
        return self.num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def reserve(self, owner: str, num_tokens: int) -> bool:
        """Reserves what a sequence may need at once until it has `num_tokens` tokens, beyond what it has reserved.
        Returns False, and reserves nothing, where too little is left."""
        held = self._reserved.get(owner, 0)
        more = blocks_of_sequence(self.window, self._block_size, num_tokens) - held
        if more > self._unreserved:
            return False
        if more > 0:
            self._unreserved -= more
            self._reserved[owner] = held + more
        return True

    def give_back(self, owner: str) -> None:
        """Ends the reservation of a sequence, if it has one."""
        self._unreserved += self._reserved.pop(owner, 0)

    def first_seen(self, position: int) -> int:
        """Returns the index, in a sequence, of the first block that the token at `position` sees."""
        return max(0, position - self.window + 1) // self._block_size

    def place_of(self, block: int) -> int | None:
        """Returns the window block of a block; None if it is gone."""
        return self._place_of.get(block)

    def require(self, block: int) -> int:
        """Returns the window block of a block that one more sequence sees. A block without one gets one, whose content
        is worthless. Raises NoWindowBlock."""
        self._needed[block] = self._needed.get(block, 0) + 1
        if block not in self._place_of:
            self._place_of[block] = self._free_place()
        self._idle.pop(block, None)
        return self._place_of[block]

    def release(self, block: int) -> None:
        """Records that one sequence less sees the block."""
        left = self._needed.pop(block) - 1
        if left:
            self._needed[block] = left
        else:
            self._idle[block] = None

    def drop(self, block: int) -> None:
        """Frees the window block of a block whose content is worthless, and that no sequence sees."""
        self._idle.pop(block, None)
        place = self._place_of.pop(block, None)
        if place is not None:
            self._free.append(place)

    def is_sound(self, seen: dict[int, int]) -> bool:
        """Returns whether every window block is free or has one block, and the blocks with sequences that see them are
        `seen`, each with their number. O(blocks)."""
        places = sorted([*self._free, *self._place_of.values()])
        return (
            places == list(range(self.num_blocks))
            and self._needed == seen
            and self._idle.keys() == self._place_of.keys() - self._needed.keys()
            and self._needed.keys() <= self._place_of.keys()
            and self._unreserved >= 0
        )

    def _free_place(self) -> int:
        if self._free:
            return self._free.popleft()
        if not self._idle:
            raise NoWindowBlock(f"all {self.num_blocks} window blocks are needed")
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        return self._place_of.pop(oldest)
