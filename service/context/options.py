"""ContextOptions is the `context` field of a request, checked. It knows names and bounds; no tokens, no messages."""

from __future__ import annotations

from dataclasses import dataclass

from service.context.policies import POLICIES, Policy
from service.errors import InvalidRequest, UnsupportedField

_SIZES = ("max_input_tokens", "reserve_output_tokens", "documents_budget", "recall_budget", "summary_budget")
MOST_PINS = 1_000


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
    def wants_knowledge(self) -> bool:
        return self.chosen == "retrieve" if self.knowledge is None else self.knowledge
