"""The block manager owns the KV cache's blocks: which are free, who uses which, and which prefixes can be used again.

It knows counts and hashes only: no tensors, steps or priorities. A block holds `block_size` slots, one per token.

    free     unreferenced, content worthless            taken first, oldest first
    cached   unreferenced, content still a known prefix  taken when no free block is left, least worth first
    used     in the tables of `ref_count` sequences

Some free and cached blocks are promised to prompts under way, which take them chunk by chunk. Until a promised block is
written over, other prompts can use its content.

Only full blocks are shared, and a full block is never written again. So nothing is ever copied on write. The content of
an evicted block may move to the offload file. It comes back into a block when a prompt begins with it.

Layers with a sliding window keep their part of a block in a window block, which the block has only for a while
(see `window`). A prefix can be used again where the blocks that its next token sees have their window blocks.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import Final

from service.engine.kv_cache.eviction import EvictionPolicy
from service.engine.kv_cache.offload import Offload
from service.engine.kv_cache.window import WindowPool
from service.engine.sequences.batch import BlockCopy
from service.engine.sequences.sequence import Sequence

Prefix = SequenceOf[int | None]
"""Blocks in order; None for a block whose content is in the offload file."""
Worth = Callable[[int], float]
"""Forecasts the seconds to compute the block at an index of a sequence again."""

_NOTHING: Final = b""
"""The content before the first block."""


class BrokenBlocks(AssertionError):
    """An invariant of the block manager does not hold: a defect of this program, never of a request."""


class BlockManager:
    """Owns every block, and `block_table`, `window_table`, `block_hashes` and `num_computed_tokens` of each
    sequence."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        offload: Offload | None = None,
        worth: Worth = lambda index: 1.0,
        windows: WindowPool | None = None,
    ) -> None:
        """Without `offload` the content of an evicted block is lost. Without `windows` every layer keeps what is in the
        blocks. Raises ValueError unless both numbers are positive."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"need at least one block of one token, got {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._prefix_caching = prefix_caching
        self._free: deque[int] = deque(range(num_blocks))
        self._cached = EvictionPolicy()
        self._worth = worth
        self._windows = windows
        self._window_starts: dict[str, int] = {}
        """The index of the first block that a sequence sees: from there on its blocks have window blocks."""
        self.offload = Offload(0) if offload is None else offload
        self._ref_counts = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._tables: dict[str, list[int]] = {}
        self._promises: dict[str, int] = {}
        self._num_promised = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could give to any sequence: free and cached blocks without a promise."""
        return len(self._free) + len(self._cached) - self._num_promised

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def copy_seconds(self, restored: int, taken: int) -> float:
        """Forecasts the seconds of copies in a step that restores `restored` blocks and takes `taken` others. Copies of
        blocks already taken are included. The content of each block that holds something may have to be saved."""
        return self.offload.forecast(restored, max(0, restored + taken - len(self._free)))

    def match(self, sequence: Sequence, most: int = sys.maxsize) -> Prefix:
        """Returns the blocks with the longest known part of the next tokens of `sequence`, at most `most`. It takes
        nothing yet.

        The blocks are full ones and never hold all tokens, because the last token must be computed to sample from it.
        An encoder's input is known whole or not at all. A sequence in the middle of a block gets no blocks.
        """
        first = sequence.num_computed_tokens // self.block_size
        if not self._prefix_caching or sequence.num_computed_tokens % self.block_size:
            return []
        blocks: list[int | None] = []
        full = (sequence.num_tokens - 1) // self.block_size
        if full > first:
            self._hash(sequence, full - 1)  # all at once: they are needed sooner or later
        for index in range(first, full):
            content = sequence.block_hashes[index]
            block = self._block_of.get(content)
            if block is None and content not in self.offload:
                break
            blocks.append(block)
        if not first and len(blocks) * self.block_size < sequence.num_encoder_slots:
            return []
        return self.usable(sequence, blocks, most)

    def usable(self, sequence: Sequence, prefix: Prefix, most: int) -> Prefix:
        """Returns the longest beginning of `prefix` (from `match`), of at most `most` blocks, behind which `sequence`
        can go on: all blocks that the next token sees have window blocks, in memory or in the offload file."""
        end = min(len(prefix), most)
        if self._windows is None:
            return prefix[:end]
        first, at = sequence.num_computed_tokens // self.block_size, end - 1
        while at >= max(0, self._windows.first_seen((first + end) * self.block_size) - first):
            block, content = prefix[at], sequence.block_hashes[first + at]
            is_kept = content in self.offload.windows if block is None else self._windows.place_of(block) is not None
            if not is_kept:
                end = at  # what ends behind this block, and before the old end, sees it too
            at -= 1
        return prefix[:end]

    def allocate(
        self, sequence: Sequence, num_tokens: int, prefix: Prefix = (), reserve: int = 0, ahead: int = 0
    ) -> bool:
        """Gives `sequence` slots for its next `num_tokens` tokens, behind `prefix` (from `match`). Promises it the
        blocks for `ahead` more tokens; the new promise replaces the old one.

        All or nothing: returns False and changes nothing if fewer than `reserve` available blocks would be left, or if
        there are too few window blocks for what the sequence may need by then. A sequence always gets promised blocks.
        With a prefix, `num_computed_tokens` moves to the prefix's end. Offloaded parts are in their blocks, and can be
        matched, once the copies are made.
        """
        promise = self._promises.get(sequence.request.id, 0)
        held = len(sequence.block_table) + len(prefix)
        start = sequence.num_computed_tokens + len(prefix) * self.block_size
        num_new = max(0, self.blocks_for(start + num_tokens) - held)
        num_ahead = max(0, self.blocks_for(start + num_tokens + ahead) - held - num_new)
        if not (num_new or prefix or num_ahead or promise):
            return True
        num_taken = num_new + sum(1 for block in prefix if block is None or self._ref_counts[block] == 0)
        if num_taken + num_ahead - promise + reserve > self.num_available:
            return False
        if self._windows is not None and not self._windows.reserve(sequence.request.id, start + num_tokens + ahead):
            return False
        table = self._tables.setdefault(sequence.request.id, sequence.block_table)
        self._promise(sequence, num_ahead)
        self._pass_window(sequence, start)
        self._hold(sequence, prefix)
        for index, block in enumerate(prefix, len(table)):
            self._take(sequence, self._restored(sequence, index) if block is None else block)
        for _ in range(num_new):
            self._take(sequence, self._see(sequence, len(table), self._fresh_block()))
        sequence.num_computed_tokens = start
        return True

    def mark_computed(self, sequence: Sequence, num_tokens: int) -> None:
        """Records that the KV of the next `num_tokens` tokens is written: `num_computed_tokens` advances, and new full
        blocks can be matched. Call after the step, never before."""
        first = sequence.num_computed_tokens // self.block_size
        sequence.num_computed_tokens += num_tokens
        last = sequence.num_computed_tokens // self.block_size
        if first == last:
            return
        for index in range(first, last) if self._prefix_caching else ():
            self._learn(sequence.block_table[index], self._hash(sequence, index))
        self._pass_window(sequence, sequence.num_computed_tokens)

    def free(self, sequence: Sequence) -> None:
        """Takes every block from `sequence`. Then its table is empty and all its tokens must be computed.

        The tail goes before the head, so the end of an unreferenced prefix is evicted first. No-op on an empty table.
        """
        self._give_back(sequence, 0)
        sequence.num_computed_tokens = 0
        self._tables.pop(sequence.request.id, None)
        self._window_starts.pop(sequence.request.id, None)
        if self._windows is not None:
            self._windows.give_back(sequence.request.id)
        self._promise(sequence, 0)

    def trim(self, sequence: Sequence) -> None:
        """Takes back the blocks behind its computed tokens, which drafts needed. A draft's block is never shared,
        because only full blocks of computed tokens are shared."""
        self._give_back(sequence, self.blocks_for(sequence.num_computed_tokens))

    def num_exclusive(self, sequence: Sequence) -> int:
        """Returns how many blocks of its table would become available if `sequence` were freed."""
        return sum(1 for block in sequence.block_table if self._ref_counts[block] == 1)

    def num_promised(self, sequence: Sequence) -> int:
        """Returns how many promised blocks would become available if `sequence` were freed."""
        return self._promises.get(sequence.request.id, 0)

    def forget(self, sequence: Sequence) -> None:
        """Makes the blocks of `sequence` unmatchable, because their content is suspect. Its table stays as it is."""
        for block in sequence.block_table:
            self._unlearn(block)
        for content in sequence.block_hashes:
            self.offload.drop(content)

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Returns the new copies, in the order in which they must be made, before any block is written. Returns each
        copy once."""
        return self.offload.take_copies()

    def lose(self, failed: Iterable[BlockCopy]) -> set[int]:
        """Records that these copies failed, so that no sequence matches their content. Returns the blocks that were to
        hold restored content."""
        lost = {copy.block for copy in failed if copy.restores}
        for copy in failed:
            self.offload.lose(copy)
        for block in lost:
            content = self._hash_of.get(block)
            self._unlearn(block)
            if content is not None and self._cached.discard(content) is not None:
                self._make_free(block)  # its sequence made way in the step of the restore
        return lost

    def check_integrity(self) -> None:
        """Raises BrokenBlocks unless free + used + cached = total, every promise can be kept, the reference counts
        equal the tables, each hash map is the other's inverse, and the ranking and the offload are sound. O(blocks):
        for tests and idle debugging."""
        used = Counter(block for table in self._tables.values() for block in table)
        cached = [self._block_of.get(ranked.content, -1) for ranked in self._cached]
        held = [*self._free, *cached, *used]
        _require(sorted(held) == list(range(self.num_blocks)), f"free + used + cached is {sorted(held)}")
        _require(self._num_promised == sum(self._promises.values()), f"{self._num_promised} promised: {self._promises}")
        _require(self.num_available >= 0, f"{self._num_promised} blocks are promised, too many")
        counts = {block: count for block, count in enumerate(self._ref_counts) if count}
        _require(counts == dict(used), f"reference counts {counts}, tables {dict(used)}")
        _require(all(len(set(table)) == len(table) for table in self._tables.values()), "a block twice in one table")
        inverse = {block: content for content, block in self._block_of.items()}
        _require(inverse == self._hash_of and len(inverse) == len(self._block_of), "hash maps differ")
        _require(
            self._cached.is_sound() and self.offload.is_sound(), "the ranking of cached or offloaded blocks is broken"
        )
        _require(not any(block in self._hash_of for block in self._free), "a free block with a hash")
        if self._windows is not None:
            seen = Counter(block for id, table in self._tables.items() for block in table[self._window_starts[id] :])
            _require(self._windows.is_sound(dict(seen)), "the window blocks are not what sequences see")
            _require(all(self._windows.place_of(block) is None for block in self._free), "a free block with a window")

    def _take(self, sequence: Sequence, block: int) -> None:
        self._ref_counts[block] += 1
        if self._windows is not None:
            place = self._windows.place_of(block) if self._sees(sequence, len(sequence.block_table)) else None
            sequence.window_table.append(self._windows.scratch if place is None else place)
        sequence.block_table.append(block)

    def _sees(self, sequence: Sequence, index: int) -> bool:
        return index >= self._window_starts.get(sequence.request.id, 0)

    def _see(self, sequence: Sequence, index: int, block: int) -> int:
        """Returns the block, which has a window block from now on if the sequence sees it."""
        if self._windows is not None and self._sees(sequence, index):
            self._windows.require(block)
        return block

    def _pass_window(self, sequence: Sequence, position: int) -> None:
        """Releases what the sequence's token at `position`, and all behind it, do not see any more."""
        if self._windows is None:
            return
        table, start = sequence.block_table, self._window_starts.get(sequence.request.id, 0)
        self._window_starts[sequence.request.id] = first = self._windows.first_seen(position)
        for index in range(start, min(first, len(table))):
            self._windows.release(table[index])

    def _promise(self, sequence: Sequence, num_blocks: int) -> None:
        before = self._promises.pop(sequence.request.id, 0)
        if num_blocks:
            self._promises[sequence.request.id] = num_blocks
        self._num_promised += num_blocks - before

    def _hold(self, sequence: Sequence, prefix: Prefix) -> None:
        """Protects the prefix's blocks from eviction, before any eviction. Raises BrokenBlocks for a block that the
        next token sees and that has lost its window block."""
        for index, block in enumerate(prefix, len(sequence.block_table)):
            if block is None:
                self.offload.hold(self._hash(sequence, index))
            else:
                self._cached.discard(self._hash_of[block])
                if self._windows is not None and self._sees(sequence, index):
                    _require(self._windows.place_of(block) is not None, f"block {block} has lost its window block")
                    self._windows.require(block)

    def _give_back(self, sequence: Sequence, keep: int) -> None:
        table = sequence.block_table
        while len(table) > keep:
            block = table.pop()
            if self._windows is not None:
                sequence.window_table.pop()
                if self._sees(sequence, len(table)):
                    self._windows.release(block)
            self._ref_counts[block] -= 1
            if self._ref_counts[block] > 0:
                continue
            content = self._hash_of.get(block)
            if content is None:
                self._make_free(block)
            else:
                index = len(table)
                parent = sequence.block_hashes[index - 1] if index else _NOTHING
                self._cached.add(content, parent, self._worth(index))

    def _fresh_block(self) -> int:
        if self._free:
            return self._free.popleft()
        ranked = self._cached.pop()
        block = self._block_of.pop(ranked.content)
        del self._hash_of[block]
        self.offload.save(ranked, block, self._window_block(block))
        if self._windows is not None:
            self._windows.drop(block)
        return block

    def _window_block(self, block: int) -> int | None:
        return None if self._windows is None else self._windows.place_of(block)

    def _make_free(self, block: int) -> None:
        if self._windows is not None:
            self._windows.drop(block)
        self._free.append(block)

    def _restored(self, sequence: Sequence, index: int) -> int:
        block, content = self._see(sequence, index, self._fresh_block()), self._hash(sequence, index)
        self.offload.restore(content, block, self._window_block(block))
        self._block_of[content], self._hash_of[block] = block, content
        return block

    def _learn(self, block: int, content: bytes) -> None:
        """Makes a computed block matchable. If another block holds the same content, this block stays private, unless
        the other one has lost its window block."""
        known = self._block_of.get(content)
        if known is not None:
            if self._windows is None or self._windows.place_of(known) is not None:
                return
            self._unlearn(known)
            if self._cached.discard(content) is not None:
                self._make_free(known)
        self._block_of[content], self._hash_of[block] = block, content

    def _unlearn(self, block: int) -> None:
        content = self._hash_of.pop(block, None)
        if content is not None:
            del self._block_of[content]

    def _hash(self, sequence: Sequence, index: int) -> bytes:
        """Returns hash(i) = SHA-256(hash(i-1), token ids of block i as 32-bit integers); hash(-1) = `_root`."""
        hashes, size = sequence.block_hashes, self.block_size
        if index >= len(hashes):
            parent = hashes[-1] if hashes else _root(sequence)
            tokens = array("I", sequence.token_ids[len(hashes) * size : (index + 1) * size])
            raw, width = tokens.tobytes(), size * tokens.itemsize
            for at in range(0, len(raw), width):
                hashes.append(parent := hashlib.sha256(parent + raw[at : at + width]).digest())
        return hashes[index]


def _root(sequence: Sequence) -> bytes:
    """Returns SHA-256(cache salt). With an adapter, which has its own keys and values, it is hashed again with the
    adapter's name. With an encoder, whose positions all depend on its whole input, it is hashed again with the
    input."""
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
