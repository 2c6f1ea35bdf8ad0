"""This module holds the values that deltas are made of: tokens, and calls of tools."""

from __future__ import annotations

from dataclasses import dataclass

from service.text.arguments import is_object


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. `text` is the text that this token made certain: it is empty inside a character or a possible
    stop string. Where a guard masked the token or stopped at it, `id` is a stand-in, the token is special, and it has
    no `top`.

    `top` holds (token id, logprob) of the likeliest tokens at this position, likeliest first.
    """

    id: int
    text: str
    logprob: float | None = None
    special: bool = False
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Call:
    """A call of a tool, as far as it has come. `arguments` is a JSON object as text. `at` is the number of characters
    of content that went out before it."""

    id: str
    name: str
    arguments: str = ""
    at: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a JSON object: not where the answer's end cut them, or the model wrote no JSON."""
        return is_object(self.arguments)

    @property
    def as_text(self) -> str:
        """Returns a cut call as content."""
        return f'{{"name": "{self.name}", "arguments": {self.arguments}'


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What a token adds to the call at `index`: `begun` is the call at its first delta, `arguments` is more of its
    arguments."""

    index: int
    begun: Call | None = None
    arguments: str = ""
