"""The KV offload: which evicted contents lie in which block of the offload file, and which copies are to be made.

Counts and hashes only: nothing here knows tensors or files. A content that came back keeps its disk block, so that it
need not be written again.
"""

from __future__ import annotations

from typing import Final

from service.engine.batch import BlockCopy
from service.engine.eviction import EvictionCandidate, EvictionPolicy

_RATE: Final = 0.1
_DOUBT: Final = 0.9999  # a block: what was too slow is tried again after some thousands


class Offload:
    """Owns the disk blocks, and the copies that are not made yet. The eviction policy is that of memory."""

    def __init__(self, num_disk_blocks: int) -> None:
        self.num_disk_blocks = num_disk_blocks
        self.num_restored = 0
        self._free: list[int] = []
        self._fresh = 0
        self._disk_block_of: dict[bytes, int] = {}
        self._content_in: dict[int, bytes] = {}
        self._kept = EvictionPolicy()
        self._held: dict[bytes, EvictionCandidate] = {}
        self._copies: list[BlockCopy] = []
        self._copy_seconds: float | None = None

    def __len__(self) -> int:
        return len(self._disk_block_of)

    def __contains__(self, content: bytes) -> bool:
        return content in self._disk_block_of

    def save(self, ranked: EvictionCandidate, block: int) -> None:
        """`block` is about to be written over: its content goes to a disk block, if there and back is forecast to take
        less than computing it, or if a content of this file lies behind it."""
        content = ranked.content
        known = self._kept.discard(content) is not None
        if not known and not self._pays(ranked):
            return
        self._kept.add(content, ranked.parent, ranked.worth)
        if known:
            return
        if len(self) == self.num_disk_blocks:
            worst = self._kept.pop().content
            if worst == content:
                return
            self._vacate(worst)
        disk_block = self._free.pop() if self._free else self._fresh
        self._fresh = max(self._fresh, disk_block + 1)
        self._disk_block_of[content], self._content_in[disk_block] = disk_block, content
        self._copies.append(BlockCopy(block, disk_block))

    def hold(self, content: bytes) -> None:
        """It will be restored: until then its disk block is nobody else's."""
        held = self._kept.discard(content)
        if held is not None:
            self._held[content] = held

    def restore(self, content: bytes, block: int) -> None:
        """What was held comes into `block`."""
        self._copies.append(BlockCopy(block, self._disk_block_of[content], restores=True))
        self.num_restored += 1
        held = self._held.pop(content)
        self._kept.add(content, held.parent, held.worth)

    def drop(self, content: bytes) -> None:
        """No-op for what is not here."""
        if content in self._disk_block_of:
            self._kept.discard(content)
            self._vacate(content)

    def lose(self, copy: BlockCopy) -> None:
        """It could not be made."""
        self.num_restored -= copy.restores
        if copy.disk_block in self._content_in:
            self.drop(self._content_in[copy.disk_block])

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Those since the last call, in the order in which they must be made."""
        if not self._copies:
            return ()
        copies, self._copies = tuple(self._copies), []
        return copies

    def observe(self, copies: int, seconds: float) -> None:
        """So many took so long."""
        each = seconds / copies
        self._copy_seconds = (
            each if self._copy_seconds is None else self._copy_seconds + _RATE * (each - self._copy_seconds)
        )

    def is_sound(self) -> bool:
        """Whether every disk block is free or has one content, and all are ranked and none held. O(disk blocks)."""
        inverse = {disk_block: content for content, disk_block in self._disk_block_of.items()}
        disk_blocks = sorted([*self._free, *self._content_in])
        ranked = {ranked.content for ranked in self._kept}
        whole = (
            inverse == self._content_in
            and disk_blocks == list(range(self._fresh))
            and self._fresh <= self.num_disk_blocks
        )
        return whole and ranked == set(self._disk_block_of) and self._kept.is_sound() and not self._held

    def _pays(self, ranked: EvictionCandidate) -> bool:
        if not self.num_disk_blocks:
            return False
        if self._copy_seconds is None or ranked.worth > 2 * self._copy_seconds:
            return True
        self._copy_seconds *= _DOUBT
        return self._kept.is_before(ranked.content)

    def _vacate(self, content: bytes) -> None:
        disk_block = self._disk_block_of.pop(content)
        del self._content_in[disk_block]
        self._free.append(disk_block)
