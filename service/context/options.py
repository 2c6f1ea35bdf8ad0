"""The `context` field of a request, checked. Knows names and bounds; no tokens, no messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.errors import InvalidRequest, UnsupportedField

_SIZES = ("max_input_tokens", "reserve_output_tokens", "documents_budget")


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """All sizes in tokens; None takes the default. `documents_budget` defaults to a quarter of the input budget."""

    policy: str = "refuse"
    max_input_tokens: int | None = None
    reserve_output_tokens: int | None = None
    documents_budget: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidRequest or UnsupportedField, naming the field."""
        if self.policy != "refuse":
            raise UnsupportedField(
                f"context.policy `{self.policy}` is not served here; use `refuse` or leave it out.",
                param="context.policy",
            )
        for name in _SIZES:
            size: object = getattr(self, name)
            least = 1 if name == "max_input_tokens" else 0
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < least):
                raise InvalidRequest(f"context.{name} must be a whole number from {least}.", param=f"context.{name}")

    @classmethod
    def parse(cls, body: Mapping[str, object]) -> ContextOptions:
        """From a decoded JSON object. A field that cannot act is refused by name."""
        for name in body:
            if name != "policy" and name not in _SIZES:
                raise UnsupportedField(f"context.{name} is not supported here; leave it out.", param=f"context.{name}")
        policy = body.get("policy", "refuse")
        if not isinstance(policy, str):
            raise InvalidRequest("context.policy must be text.", param="context.policy")
        sizes = {name: body.get(name) for name in _SIZES}
        return cls(policy, **sizes)  # type: ignore[arg-type]  # checked in __post_init__
