"""What goes on in the spill file when memory needs its block: which content is in which slot, and what is to be copied.

Counts and hashes only: nothing here knows tensors or files. A content that came back keeps its slot, so that it need
not be written again.
"""

from __future__ import annotations

from typing import Final

from service.engine.ranking import Ranked, Ranking
from service.engine.request import Copy

_RATE: Final = 0.1
_DOUBT: Final = 0.9999  # a block: what was too slow is tried again after some thousands


class Spill:
    """Owns the slots, and the copies that are not made yet. What goes is chosen as in memory."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_restored = 0
        self._free: list[int] = []
        self._fresh = 0
        self._slot_of: dict[bytes, int] = {}
        self._content_in: dict[int, bytes] = {}
        self._kept = Ranking()
        self._held: dict[bytes, Ranked] = {}
        self._copies: list[Copy] = []
        self._copy_seconds: float | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, content: bytes) -> bool:
        return content in self._slot_of

    def save(self, ranked: Ranked, block: int) -> None:
        """`block` is about to be written over: its content goes to a slot, if there and back is forecast to take less
        than computing it, or something that is here lies behind it."""
        content = ranked.content
        known = self._kept.discard(content) is not None
        if not known and not self._pays(ranked):
            return
        self._kept.add(content, ranked.parent, ranked.worth)
        if known:
            return
        if len(self) == self.num_slots:
            worst = self._kept.pop().content
            if worst == content:
                return
            self._vacate(worst)
        slot = self._free.pop() if self._free else self._fresh
        self._fresh = max(self._fresh, slot + 1)
        self._slot_of[content], self._content_in[slot] = slot, content
        self._copies.append(Copy(block, slot))

    def hold(self, content: bytes) -> None:
        """It will be restored: until then its slot is nobody else's."""
        held = self._kept.discard(content)
        if held is not None:
            self._held[content] = held

    def restore(self, content: bytes, block: int) -> None:
        """What was held comes into `block`."""
        self._copies.append(Copy(block, self._slot_of[content], restores=True))
        self.num_restored += 1
        held = self._held.pop(content)
        self._kept.add(content, held.parent, held.worth)

    def drop(self, content: bytes) -> None:
        """No-op for what is not here."""
        if content in self._slot_of:
            self._kept.discard(content)
            self._vacate(content)

    def lose(self, copy: Copy) -> None:
        """It could not be made."""
        self.num_restored -= copy.restores
        if copy.slot in self._content_in:
            self.drop(self._content_in[copy.slot])

    def take_copies(self) -> tuple[Copy, ...]:
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
        """Whether every slot in use is free or has one content, and all are ranked and none held. O(slots)."""
        inverse = {slot: content for content, slot in self._slot_of.items()}
        slots = sorted([*self._free, *self._content_in])
        ranked = {ranked.content for ranked in self._kept}
        whole = inverse == self._content_in and slots == list(range(self._fresh)) and self._fresh <= self.num_slots
        return whole and ranked == set(self._slot_of) and self._kept.is_sound() and not self._held

    def _pays(self, ranked: Ranked) -> bool:
        if not self.num_slots:
            return False
        if self._copy_seconds is None or ranked.worth > 2 * self._copy_seconds:
            return True
        self._copy_seconds *= _DOUBT
        return self._kept.is_before(ranked.content)

    def _vacate(self, content: bytes) -> None:
        slot = self._slot_of.pop(content)
        del self._content_in[slot]
        self._free.append(slot)
