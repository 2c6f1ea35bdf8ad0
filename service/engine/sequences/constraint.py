"""A constraint keeps one sequence to its grammar: which tokens may come next, and which one must.

It knows the sequence's own output tokens: no text, steps or tensors. Where the grammar leaves one text only, its tokens
are certain, as the tokenizer writes it. A certain token is the only one allowed, however it is computed: alone, or
with others behind the last known token in one step. So a grammar's tokens do not depend on the crowd.

    {"name": "▁ ▁ ▁", "age": ▁ }        the certain parts of an object with two properties; ▁ is sampled
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

MOST_CERTAIN: Final = 15
"""The most certain tokens behind the last known one in one step."""
Allowed = int | bytes
"""The only allowed token id; or a bit for each id, the lowest bit of the first byte for id 0."""


class Matcher(Protocol):
    """A place in a grammar, as llguidance's LLMatcher. Its methods raise nothing: it goes into an error state."""

    def consume_token(self, sampled_token: int) -> bool: ...

    def consume_tokens(self, tokens: list[int]) -> bool: ...

    def validate_tokens(self, tokens: list[int]) -> int: ...

    def compute_ff_tokens(self) -> list[int]: ...

    def compute_bitmask(self) -> bytes: ...

    def is_stopped(self) -> bool: ...

    def is_error(self) -> bool: ...

    def deep_copy(self) -> Matcher: ...


class Grammars(Protocol):
    """Compiles grammars for the model's vocabulary."""

    end_id: int
    """The id behind the vocabulary that a mask allows where the text may end."""

    def compile(self, text: str) -> Matcher:
        """Returns a matcher at the grammar's start. Any thread may call it. Raises ValueError."""
        ...

    def tokens(self, text: str) -> list[int]:
        """Returns tokens that have this text."""
        ...


def certain_tokens(matcher: Matcher) -> Sequence[int]:
    """Returns the tokens that a grammar leaves alone at the matcher's place."""
    if matcher.is_stopped():
        return ()
    tokens = matcher.compute_ff_tokens()
    return tokens[: matcher.validate_tokens(tokens)] if tokens else ()


class Constraint:
    """Owned by a sequence. Between two steps the scheduler calls it, during a step the runner."""

    def __init__(
        self,
        matcher: Matcher,
        end_id: int,
        stop_token_ids: Sequence[int],
        certain: Sequence[int],
        broke: Callable[[], None] = lambda: None,
    ) -> None:
        """`end_id` as in Grammars. `stop_token_ids` are allowed where the text may end, and nowhere else. `certain` are
        the certain tokens of the start. `broke` is called, by any thread, where the grammar can be followed no
        further."""
        self._matcher = matcher
        self._end_id = end_id
        self._stop_token_ids = [id for id in stop_token_ids if 0 <= id < end_id]
        self._broke = broke
        self._num_followed = 0
        self._certain: deque[int] = deque(certain)

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow: the text is whole."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def is_broken(self) -> bool:
        """Whether the grammar can be followed no further: its next step would take too much work."""
        return self._matcher.is_error()

    def follow(self, output: Sequence[int]) -> None:
        """Takes in the output tokens since the last call; `output` only grows. Stops at one that is not allowed."""
        for token_id in output[self._num_followed :]:
            self._num_followed += 1
            self._consume(token_id)

    def certain(self, most: int = MOST_CERTAIN) -> tuple[int, ...]:
        """Returns the next tokens that are certain, `most` at most."""
        return tuple(islice(self._certain, max(0, most)))

    def admissible(self, drafts: Sequence[int]) -> int:
        """Returns how many of these tokens may come next, one behind the other."""
        return self._matcher.validate_tokens(list(drafts))

    def allowed(self, drafts: Sequence[int]) -> list[Allowed | None]:
        """Returns what is allowed next, and behind each draft as if it and those before it were true; None behind a
        draft that is not allowed. A broken grammar allows nothing."""
        agreed = self._agreed(drafts)
        found: list[Allowed | None] = list(islice(self._certain, agreed + 1))
        if agreed == len(self._certain):  # else the next certain token is known, and another draft is not allowed
            found += self._behind(drafts, agreed)
        return found + [None] * (1 + len(drafts) - len(found))

    def _agreed(self, drafts: Sequence[int]) -> int:
        """Returns how many of the first drafts are the certain tokens."""
        agreed = 0
        for draft, certain in zip(drafts, self._certain, strict=False):
            if draft != certain:
                break
            agreed += 1
        return agreed

    def _behind(self, drafts: Sequence[int], agreed: int) -> list[Allowed | None]:
        """Returns what is allowed behind the certain tokens, which are the first `agreed` drafts, and behind each draft
        that follows, up to one that is not allowed. A draft is tried on a copy: where the grammar can be followed no
        further behind it, and it is not what is sampled, the answer goes on."""
        if not drafts:
            return [self._next()]
        ahead = Constraint(self._matcher.deep_copy(), self._end_id, self._stop_token_ids, self._certain)
        if agreed and not ahead._matcher.consume_tokens(list(drafts[:agreed])):
            return []
        if agreed:
            ahead._certain = deque(certain_tokens(ahead._matcher))
        allowed = [None if agreed and ahead.is_complete else (ahead if agreed else self)._next()]
        for draft in drafts[agreed:]:
            if ahead._matcher.validate_tokens([draft]) != 1 or not ahead._matcher.consume_token(draft):
                break
            ahead._advance(draft)
            allowed.append(None if ahead.is_complete else ahead._next())
        return allowed

    def _consume(self, token_id: int) -> None:
        if self._matcher.consume_token(token_id):
            self._advance(token_id)
        if self._matcher.is_error():
            self._certain.clear()
            self._broke()

    def _advance(self, token_id: int) -> None:
        if self._certain and self._certain[0] == token_id:
            self._certain.popleft()
        else:
            self._certain.clear()
        if not self._certain:
            self._certain.extend(certain_tokens(self._matcher))

    def _next(self) -> Allowed:
        if self._certain:
            return self._certain[0]
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():  # then it allows the end
            self._broke()
            return bytes(len(mask))
        may_end = _has(mask, self._end_id)
        if all(_has(mask, id) == may_end for id in self._stop_token_ids):
            return mask
        changed = bytearray(mask)
        for id in self._stop_token_ids:
            changed[id >> 3] = changed[id >> 3] & ~(1 << (id & 7)) | may_end << (id & 7)
        return bytes(changed)


def _has(mask: bytes, id: int) -> bool:
    return bool(mask[id >> 3] >> (id & 7) & 1)
