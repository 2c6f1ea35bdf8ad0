"""Blocks of the KV cache: which are free, which sequence uses which, and which prefixes can be used again.

Counts and hashes only: nothing here knows tensors, steps or priorities. A block holds `block_size` slots, one a token.

    free     unreferenced, content worthless            taken first, oldest first
    cached   unreferenced, content still a known prefix  taken when no free block is left, least recently used first
    used     in the tables of `ref_count` sequences

Only full blocks are shared, and a full block is never written again, so nothing is ever copied on write.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence as SequenceOf

from service.engine.request import Sequence


class BrokenBlocks(AssertionError):
    """An invariant of the block manager does not hold: a defect of this program, never of a request."""


class BlockManager:
    """Owns every block, and of each sequence `block_table`, `block_hashes` and `num_computed_tokens`."""

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        """Raises ValueError unless both numbers are positive."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"need at least one block of one token, got {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._prefix_caching = prefix_caching
        self._free: deque[int] = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._ref_counts = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._tables: dict[str, list[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out: the free ones and the cached ones."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[int]:
        """The blocks that hold the longest known prefix of `sequence`, in order; nothing is taken yet.

        Full blocks only, and never all of its tokens: the last one must be computed to sample from it. An encoder's
        input is known whole or not at all.
        """
        if not self._prefix_caching:
            return []
        blocks: list[int] = []
        for index in range((sequence.num_tokens - 1) // self.block_size):
            block = self._block_of.get(self._hash(sequence, index))
            if block is None:
                break
            blocks.append(block)
        return blocks if len(blocks) * self.block_size >= sequence.num_encoder_slots else []

    def allocate(self, sequence: Sequence, num_tokens: int, prefix: SequenceOf[int] = (), reserve: int = 0) -> bool:
        """Give `sequence` slots for its next `num_tokens` tokens, behind `prefix` (from `match`, for empty tables).

        All or nothing: False, and nothing changed, when fewer than `reserve` available blocks would be left.
        With a prefix, `num_computed_tokens` moves to its end.
        """
        start = sequence.num_computed_tokens + len(prefix) * self.block_size
        num_new = self.blocks_for(start + num_tokens) - len(sequence.block_table) - len(prefix)
        if num_new <= 0 and not prefix:
            return True
        num_revived = sum(1 for block in prefix if self._ref_counts[block] == 0)
        if num_new + num_revived + reserve > self.num_available:
            return False
        table = self._tables.setdefault(sequence.request.id, sequence.block_table)
        for block in prefix:  # before any eviction, which could hit them
            self._cached.pop(block, None)
            self._take(table, block)
        for _ in range(num_new):
            self._take(table, self._fresh_block())
        sequence.num_computed_tokens = start
        return True

    def mark_computed(self, sequence: Sequence, num_tokens: int) -> None:
        """The KV of the next `num_tokens` tokens is written: `num_computed_tokens` advances, and blocks that became
        full can be matched from now on. Call after the step, never before."""
        first = sequence.num_computed_tokens // self.block_size
        sequence.num_computed_tokens += num_tokens
        if not self._prefix_caching:
            return
        for index in range(first, sequence.num_computed_tokens // self.block_size):
            content = self._hash(sequence, index)
            if content not in self._block_of:  # else another block holds the same already; this one stays private
                self._block_of[content] = sequence.block_table[index]
                self._hash_of[sequence.block_table[index]] = content

    def free(self, sequence: Sequence) -> None:
        """Take every block from `sequence`, whose table is empty afterwards and whose tokens are all to be computed.

        Tail before head, so that of an unreferenced prefix the end is evicted first. No-op on an empty table.
        """
        self._give_back(sequence.block_table, 0)
        sequence.num_computed_tokens = 0
        self._tables.pop(sequence.request.id, None)

    def trim(self, sequence: Sequence) -> None:
        """Take back the blocks behind its computed tokens: those that drafts had needed. No draft's block was ever
        shared, for only full blocks of computed tokens are."""
        self._give_back(sequence.block_table, self.blocks_for(sequence.num_computed_tokens))

    def num_exclusive(self, sequence: Sequence) -> int:
        """Blocks that would become available if `sequence` were freed."""
        return sum(1 for block in sequence.block_table if self._ref_counts[block] == 1)

    def forget(self, sequence: Sequence) -> None:
        """Let nobody match the blocks of `sequence` again: their content is suspect. Its table stays as it is."""
        for block in sequence.block_table:
            content = self._hash_of.pop(block, None)
            if content is not None:
                del self._block_of[content]

    def check_integrity(self) -> None:
        """Raises BrokenBlocks unless free + used + cached = total, the reference counts equal the tables, and the two
        hash maps are each other's inverse. O(blocks): for tests and idle debugging."""
        used = Counter(block for table in self._tables.values() for block in table)
        held = [*self._free, *self._cached, *used]
        _require(sorted(held) == list(range(self.num_blocks)), f"free + used + cached is {sorted(held)}")
        counts = {block: count for block, count in enumerate(self._ref_counts) if count}
        _require(counts == dict(used), f"reference counts {counts}, tables {dict(used)}")
        _require(all(len(set(table)) == len(table) for table in self._tables.values()), "a block twice in one table")
        inverse = {block: content for content, block in self._block_of.items()}
        _require(inverse == self._hash_of and len(inverse) == len(self._block_of), "hash maps differ")
        _require(all(block in self._hash_of for block in self._cached), "a cached block without a hash")
        _require(not any(block in self._hash_of for block in self._free), "a free block with a hash")

    def _take(self, table: list[int], block: int) -> None:
        self._ref_counts[block] += 1
        table.append(block)

    def _give_back(self, table: list[int], keep: int) -> None:
        while len(table) > keep:
            block = table.pop()
            self._ref_counts[block] -= 1
            if self._ref_counts[block] > 0:
                continue
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def _fresh_block(self) -> int:
        if self._free:
            return self._free.popleft()
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block

    def _hash(self, sequence: Sequence, index: int) -> bytes:
        """hash(i) = SHA-256(hash(i-1), token ids of block i as 32-bit integers); hash(-1) = `_root`."""
        hashes = sequence.block_hashes
        while len(hashes) <= index:
            parent = hashes[-1] if hashes else _root(sequence)
            start = len(hashes) * self.block_size
            tokens = array("I", sequence.token_ids[start : start + self.block_size])
            hashes.append(hashlib.sha256(parent + tokens.tobytes()).digest())
        return hashes[index]


def _root(sequence: Sequence) -> bytes:
    """SHA-256(cache salt); of that and the adapter where there is one, whose keys and values are its own; of that and
    the whole input of an encoder, whose every position depends on all of it."""
    request = sequence.request
    root = hashlib.sha256(request.cache_salt.encode()).digest()
    if request.adapter:
        root = hashlib.sha256(root + request.adapter.encode()).digest()
    if sequence.num_encoder_slots:
        root = hashlib.sha256(root + array("I", request.token_ids).tobytes()).digest()
    return root


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenBlocks(what)
