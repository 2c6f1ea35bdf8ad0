"""An inspection lists a call's messages with what became of each and why, and the prompt token by token. It holds
values only; `inspecting` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["kept", "dropped", "summarised", "recalled"]


@dataclass(frozen=True, slots=True)
class InspectedMessage:
    """One message, document, summary or raw prompt. `id` is its name in the receipt, None where it has none. `tokens`
    are those of its texts: as they were sent, or of the whole text where it was not sent."""

    id: str | None
    role: str
    tokens: int
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class RenderedToken:
    """`text` is what the token adds to the text of the tokens before it. `message` is the index of the inspected
    message that the token belongs to; None for the template's own tokens."""

    id: int
    text: str
    message: int | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """`messages` hold everything that was sent, and of the messages that were not, those that the receipt names;
    `unlisted` is the number of the others."""

    messages: Sequence[InspectedMessage]
    rendered: Sequence[RenderedToken]
    unlisted: int = 0

    def to_dict(self) -> dict[str, object]:
        """Returns the fields that it adds to a receipt. The encoder of JSON writes the values as they are: a prompt may
        have 100,000 tokens."""
        return {"messages": self.messages, "rendered": self.rendered, "unlisted": self.unlisted}
