"""A budget is made of what a request asks of its context: how many tokens the prompt may have, and how many the
answer behind it. The module knows names, bounds and numbers; no tokens, no messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from service.context.policies import POLICIES, Policy
from service.errors import ContextOverflow, InvalidRequest, UnsupportedField

READERS: Final[Mapping[str, tuple[Policy, ...]]] = {
    **dict.fromkeys(("low_water", "pin"), ("window", "middle", "summarise", "retrieve")),
    "recall_budget": ("retrieve",),
    "summary_budget": ("summarise",),
}
"""The policies that read an option; all policies read the others."""
_SIZES = ("max_input_tokens", "reserve_output_tokens", "documents_budget", "recall_budget", "summary_budget")
MOST_PINS = 1_000
OPEN_RESERVE: Final = 256
"""The most tokens that are kept free for an answer whose length is open, or may be far less than the request allows."""
_OPEN_SHARE: Final = 8  # of the window, by which an open length is divided


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """All sizes are in tokens; None takes the default. `policy` defaults to the session's, else to `refuse`.
    `documents_budget`, and `recall_budget` for old turns that match, default to a quarter of the input budget;
    `summary_budget` to an eighth; `low_water`, a fraction of the input budget, to what `policies` says. `pin` names
    messages that are never left out. `knowledge` also places passages of the caller's knowledge base that match; by
    default it is on with `retrieve`. `inspect` asks for the inspection of the prompt beside its receipt; it changes
    nothing that is sent."""

    policy: Policy | None = None
    max_input_tokens: int | None = None
    reserve_output_tokens: int | None = None
    documents_budget: int | None = None
    low_water: float | None = None
    pin: tuple[str, ...] = ()
    recall_budget: int | None = None
    summary_budget: int | None = None
    knowledge: bool | None = None
    inspect: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidRequest or UnsupportedField, naming the field."""
        if self.policy is not None and self.policy not in POLICIES:
            raise UnsupportedField(
                f"context.policy `{self.policy}` is not served here; use one of {', '.join(POLICIES)}.",
                param="context.policy",
            )
        if self.low_water is not None and not 0 < self.low_water < 1:
            raise InvalidRequest("context.low_water must be between 0 and 1.", param="context.low_water")
        if len(self.pin) > MOST_PINS:
            raise InvalidRequest(f"context.pin names more than {MOST_PINS} messages.", param="context.pin")
        for name in _SIZES:
            size: object = getattr(self, name)
            least = 1 if name == "max_input_tokens" else 0
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < least):
                raise InvalidRequest(f"context.{name} must be a whole number from {least}.", param=f"context.{name}")

    @property
    def chosen(self) -> Policy:
        return self.policy or "refuse"

    @property
    def unread(self) -> tuple[str, ...]:
        """Returns the options that are set and that the chosen policy does not read."""
        named = (name for name, readers in READERS.items() if self.chosen not in readers)
        return tuple(name for name in named if getattr(self, name) not in (None, ()))

    @property
    def wants_knowledge(self) -> bool:
        return self.chosen == "retrieve" if self.knowledge is None else self.knowledge


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget holds the numbers of one call. With `answer_window` None, prompt and answer share the window."""

    window: int
    max_new_tokens: int | None
    options: ContextOptions
    answer_window: int | None = None

    @property
    def is_shared(self) -> bool:
        return self.answer_window is None

    @property
    def reserve(self) -> int:
        """Returns the tokens that must be free for the answer; one where the request sets no length of the answer."""
        if self.options.reserve_output_tokens is not None:
            return self.options.reserve_output_tokens
        return 1 if self.max_new_tokens is None else self.max_new_tokens

    @property
    def is_open(self) -> bool:
        """Whether the request sets no length of the answer, and no reserve for it."""
        return self.max_new_tokens is None and self.options.reserve_output_tokens is None

    @property
    def limit(self) -> int:
        """Returns the input budget in tokens: what a policy cuts a chat to. A policy that leaves messages out keeps an
        eighth of the window, at most OPEN_RESERVE, free for an answer of open length."""
        if self.options.chosen == "refuse" or not self.is_open or not self.is_shared:
            return self.most
        return min(self.most, self.window - min(OPEN_RESERVE, self.window // _OPEN_SHARE))

    @property
    def most(self) -> int:
        """Returns the most tokens that the prompt may have. What must be sent may take all of them."""
        room = self.window - self.needed(0)
        return room if self.options.max_input_tokens is None else min(room, self.options.max_input_tokens)

    def needed(self, used: int) -> int:
        """Returns the tokens of prompt and answer together, as far as they share the window. A requested answer has at
        least one token."""
        if not self.is_shared:
            return used
        return used + max(self.reserve, 0 if self.max_new_tokens == 0 else 1)

    @property
    def documents(self) -> int:
        configured = self.options.documents_budget
        return max(0, self.limit) // 4 if configured is None else configured

    @property
    def aside(self) -> int:
        """Returns the tokens set aside for what replaces old turns."""
        room, options = max(0, self.limit), self.options
        if options.chosen == "retrieve":
            return room // 3 if options.recall_budget is None else min(room, options.recall_budget)
        if options.chosen == "summarise":
            return room // 8 if options.summary_budget is None else min(room, options.summary_budget)
        return 0

    def answer(self, used: int) -> int:
        """Returns how many tokens the answer may have."""
        room = max(0, self.window - used) if self.answer_window is None else self.answer_window
        return room if self.max_new_tokens is None else min(room, self.max_new_tokens)

    def reserved(self, used: int) -> int:
        """Returns the room for the answer that a receipt shows: all that is left where the request sets no length."""
        if not self.is_shared:
            return 0
        return self.answer(used) if self.is_open else self.reserve

    def require_answer(self) -> None:
        """Raises ContextOverflow where the requested answer alone does not fit."""
        if self.answer_window is not None and self.reserve > self.answer_window:
            raise ContextOverflow(
                f"{self.reserve} tokens are asked for the answer; this version's decoder has {self.answer_window}: "
                f"lower max_new_tokens by {self.reserve - self.answer_window}.",
                param="max_new_tokens",
                fields=("max_new_tokens",),
                window=self.answer_window,
                needed_tokens=self.reserve,
                reserve=self.reserve,
            )

    def require(self, used: int, param: str, change: str = "") -> None:
        """Raises ContextOverflow about the field `param`, with the numbers and what to change: the input's length where
        `change` names nothing else."""
        if used <= self.most:
            return
        over, room = used - self.most, self.window - used
        change, needed = change or f"shorten the input by {over} tokens", self.needed(used)
        refused = partial(
            ContextOverflow,
            param=param,
            window=self.window,
            needed_tokens=needed,
            reserve=self.reserve,
            prompt_tokens=used,
        )
        if self.most < self.window - self.needed(0):
            raise refused(
                f"The prompt has {used} tokens, and context.max_input_tokens lets {self.most} in: {change} or raise "
                "context.max_input_tokens.",
                max_input_tokens=self.most,
            )
        if room > 0 and self.options.reserve_output_tokens is not None:
            change += f" or lower context.reserve_output_tokens to {room}"
        elif room > 0 and self.max_new_tokens is not None:
            change += f" or lower max_new_tokens to {room}"
        answer = f" and {self.reserve} are reserved for the answer, {needed} together"
        raise refused(
            f"The prompt has {used} tokens{answer if self.is_shared else ''}; the window has {self.window}: {change}.",
            fields=("max_new_tokens", param),
        )
