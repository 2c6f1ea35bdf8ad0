"""The KV offload knows which evicted contents lie in which block of the offload file, and which copies must be made.

It knows counts, hashes and seconds only: no tensors or files. A content that came back keeps its disk block, so it need
not be written again.
"""

from __future__ import annotations

import sys
from typing import Final

from service.engine.kv_cache.eviction import EvictionCandidate, EvictionPolicy
from service.engine.sequences.batch import BlockCopy

_MEMORY: Final = 8  # copies: a step with this many slow copies counts as much as the old mean
_FALLING: Final = 0.5  # a copy that other work delayed is soon forgotten
_PRIOR_SECONDS: Final = 0.005  # a copy, before the first was measured: a slow disk
_RETRY: Final = 1000  # of this many contents that do not pay, one is saved anyway: it measures a copy
_SHARE_RATE: Final = 0.05
_PAUSE: Final = 64  # contents not saved after a step in which no copy succeeded; doubled each time
_LONGEST_PAUSE: Final = 1 << 16


class Offload:
    """Owns the disk blocks and the pending copies. Its eviction policy is the same as that of memory."""

    def __init__(self, num_disk_blocks: int) -> None:
        self.num_disk_blocks = num_disk_blocks
        self.num_restored = 0
        self.windows: set[bytes] = set()
        """The contents here whose window block is here too."""
        self.max_copies = sys.maxsize
        """A content is saved only while fewer copies than this are pending. Restoring has no limit here."""
        self._free: list[int] = []
        self._fresh = 0
        self._disk_block_of: dict[bytes, int] = {}
        self._content_in: dict[int, bytes] = {}
        self._kept = EvictionPolicy()
        self._held: dict[bytes, EvictionCandidate] = {}
        self._copies: dict[int, BlockCopy] = {}
        self._order = 0
        self._unread: dict[int, int] = {}  # disk block -> the pending copy into it, which no pending copy reads
        self._copy_seconds: float | None = None
        self._share_saved = 1.0
        self._num_refused = 0
        self._pause = 0
        self._next_pause = _PAUSE

    def __len__(self) -> int:
        return len(self._disk_block_of)

    def __contains__(self, content: bytes) -> bool:
        return content in self._disk_block_of

    @property
    def num_pending(self) -> int:
        """Copies that `take_copies` has not returned yet."""
        return len(self._copies)

    @property
    def copy_seconds(self) -> float:
        """Forecast seconds of one copy; 0 without disk blocks."""
        if not self.num_disk_blocks:
            return 0.0
        return _PRIOR_SECONDS if self._copy_seconds is None else self._copy_seconds

    def forecast(self, restored: int, evicted: int) -> float:
        """Forecasts the seconds of the pending copies and of those for `restored` and `evicted` contents. It assumes
        that as large a share of the evicted contents is saved as recently."""
        each = self.copy_seconds
        return each * (self.num_pending + restored + self._share_saved * evicted) if each else 0.0

    def save(self, ranked: EvictionCandidate, block: int, window_block: int | None = None) -> None:
        """Saves the content of `block`, which is about to be written over, and of its window block, to a disk block. It
        does so if the step has room for a copy, and if saving and restoring is forecast to take less than computing the
        content, or if a content of this file lies behind it."""
        if not self.num_disk_blocks or (self.num_pending >= self.max_copies and ranked.content not in self):
            return
        before = self._order
        self._save(ranked, block, window_block)
        self._share_saved += _SHARE_RATE * ((self._order > before) - self._share_saved)

    def hold(self, content: bytes) -> None:
        """Reserves the disk block of a content that will be restored."""
        held = self._kept.discard(content)
        if held is not None:
            self._held[content] = held

    def restore(self, content: bytes, block: int, window_block: int | None = None) -> None:
        """Restores a held content into `block`, and into its window block if it has one."""
        disk_block = self._disk_block_of[content]
        self._add(BlockCopy(block, disk_block, True, window_block))
        self._unread.pop(disk_block, None)
        self.num_restored += 1
        held = self._held.pop(content)
        self._kept.add(content, held.parent, held.worth)

    def drop(self, content: bytes) -> None:
        """Removes a content. No-op for a content that is not here."""
        if content in self._disk_block_of:
            self._kept.discard(content)
            self._vacate(content)

    def lose(self, copy: BlockCopy) -> None:
        """Notes that a copy failed."""
        self.num_restored -= copy.restores
        if copy.disk_block in self._content_in:
            self.drop(self._content_in[copy.disk_block])

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Returns the copies since the last call, in the order in which they must be made."""
        if not self._copies:
            return ()
        copies, self._copies = tuple(self._copies.values()), {}
        self._unread.clear()
        return copies

    def observe(self, copies: int, seconds: float, failures: int = 0) -> None:
        """Learns that `copies` copies took `seconds`, and that `failures` of them failed. A file that takes nothing,
        such as one on a full disk, is not used for a while, and for twice as long each time."""
        each = seconds / copies
        known = each if self._copy_seconds is None else self._copy_seconds
        rate = copies / (copies + _MEMORY) if each > known else _FALLING
        self._copy_seconds = known + rate * (each - known)
        if failures < copies:
            self._pause, self._next_pause = 0, _PAUSE
        else:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)

    def is_sound(self) -> bool:
        """Returns whether every disk block is free or has one content, and all are ranked and none is held. O(disk
        blocks)."""
        inverse = {disk_block: content for content, disk_block in self._disk_block_of.items()}
        disk_blocks = sorted([*self._free, *self._content_in])
        ranked = {ranked.content for ranked in self._kept}
        whole = (
            inverse == self._content_in
            and disk_blocks == list(range(self._fresh))
            and self._fresh <= self.num_disk_blocks
        )
        unread = {disk_block: self._copies[order].disk_block for disk_block, order in self._unread.items()}
        pending = unread.keys() <= self._content_in.keys() and all(one == other for one, other in unread.items())
        whole &= self.windows <= self._disk_block_of.keys()
        return whole and pending and ranked == set(self._disk_block_of) and self._kept.is_sound() and not self._held

    def _save(self, ranked: EvictionCandidate, block: int, window_block: int | None) -> None:
        content = ranked.content
        if window_block is not None and content in self and content not in self.windows:
            self.drop(content)  # more of it is known now
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
        if window_block is not None:
            self.windows.add(content)
        self._unread[disk_block] = self._add(BlockCopy(block, disk_block, False, window_block))

    def _pays(self, ranked: EvictionCandidate) -> bool:
        if self._pause:
            self._pause -= 1
            return False
        if self._copy_seconds is None or ranked.worth > 2 * self._copy_seconds or self._kept.is_before(ranked.content):
            return True
        self._num_refused += 1
        return self._num_refused % _RETRY == 0

    def _add(self, copy: BlockCopy) -> int:
        self._order += 1
        self._copies[self._order] = copy
        return self._order

    def _vacate(self, content: bytes) -> None:
        """Frees the disk block of a content. A pending copy into it that no copy reads is dropped."""
        disk_block = self._disk_block_of.pop(content)
        self.windows.discard(content)
        del self._content_in[disk_block]
        self._free.append(disk_block)
        superseded = self._unread.pop(disk_block, None)
        if superseded is not None:
            del self._copies[superseded]
