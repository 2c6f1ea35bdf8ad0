"""RecentSummaries keeps the summaries of chats without a session in memory: a few, for a limited time, and none of a
chat that was edited.

A client sends the whole chat each time, so the next call shows an edit or a deletion: most of the messages that a
summary stands for are there, but not all, or not in their order. The module knows messages as digests; the only text it
keeps is the summaries'.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from service.text.messages import Message

MOST = 2_000
SECONDS = 3600.0
"""How long a summary is kept after its last use."""


@dataclass(frozen=True, slots=True)
class _Kept:
    text: str
    chat: str
    digests: frozenset[bytes]
    used_at: float


class RecentSummaries:
    """The event loop owns this object. `chat` is the same for all calls of a chat; other chats that begin alike may
    share it. A key stands for the messages before a position, as they were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._chats: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, chat: str, keys: Sequence[str], messages: Sequence[Message]) -> Mapping[str, str]:
        """Returns key → text for the chat's present `keys`. Forgets summaries of the same chat as it was before an
        edit."""
        self._expire()
        known, present, digests = self._chats.get(chat, set()), set(keys), set(map(_digest, messages))
        for key in [each for each in known if each not in present and self._is_edited(each, digests)]:
            self._forget(key)
        found = {key: self._kept[key] for key in keys if key in self._kept}
        for key, kept in found.items():
            self._put(key, kept)
        return {key: kept.text for key, kept in found.items()}

    def keep(self, chat: str, key: str, messages: Sequence[Message], text: str) -> None:
        """Keeps `text`, the summary of `messages`."""
        self._put(key, _Kept(text, chat, frozenset(map(_digest, messages)), self._clock()))
        while len(self._kept) > MOST:
            self._forget(next(iter(self._kept)))

    def _put(self, key: str, kept: _Kept) -> None:
        self._kept[key] = _Kept(kept.text, kept.chat, kept.digests, self._clock())
        self._kept.move_to_end(key)
        self._chats.setdefault(kept.chat, set()).add(key)

    def _is_edited(self, key: str, digests: set[bytes]) -> bool:
        kept = self._kept[key].digests
        return 2 * len(kept & digests) >= len(kept)

    def _expire(self) -> None:
        while self._kept and self._clock() - next(iter(self._kept.values())).used_at > SECONDS:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: str) -> None:
        chat = self._kept.pop(key).chat
        self._chats[chat].discard(key)
        if not self._chats[chat]:
            del self._chats[chat]


def _digest(message: Message) -> bytes:
    return hashlib.blake2b(repr(message).encode("utf-8", "surrogatepass"), digest_size=16).digest()
