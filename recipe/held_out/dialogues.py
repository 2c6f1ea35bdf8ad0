"""A held-out dialogue is what a person wrote: a system prompt, documents, user turns, and what a right answer holds.

This module reads JSON Lines of them. It knows no model and no check.
"""

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal[
    "name",
    "order",
    "quantity",
    "change",
    "total",
    "price",
    "allergy",
    "dislike",
    "pickup_time",
    "phone",
    "address",
    "budget",
    "drink",
    "shop",
    "hours",
    "closing_day",
    "special",
    "fee",
    "owner",
    "parking",
    "wifi",
    "chef",
    "delivery_time",
    "minimum",
    "not_told",
    "off_topic",
    "greeting",
    "thanks",
    "complaint",
    "language",
]


class Asks(msgspec.Struct, frozen=True):
    """What the answer is checked for. Of `right` every item must occur, in one of its spellings; of `wrong` none.

    `told` is the number, from 1, of the user turn that told the fact.
    """

    kind: Kind
    source: Literal["chat", "system", "document"] | None = None
    told: int | None = None
    right: list[str | list[str]] | None = None
    wrong: list[str] | None = None


class Turn(msgspec.Struct, frozen=True):
    """A line of the user."""

    user: str
    asks: Asks | None = None


class Document(msgspec.Struct, frozen=True):
    """A notice or a price list."""

    text: str
    title: str | None = None


class HeldOut(msgspec.Struct, frozen=True):
    """One dialogue; the model gives the answers between its turns."""

    id: str
    language: Literal["ko", "en"]
    style: Literal["plain", "paraphrased"]
    turns: list[Turn]
    system: str | None = None
    documents: list[Document] | None = None
    switches: bool | None = False


def read(path: Path) -> list[HeldOut]:
    """The dialogues of a file. Raises ValueError with the number of a line that is not one."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=HeldOut))
        except msgspec.DecodeError as error:
            raise ValueError(f"{path.name} line {number} is no dialogue: {error}") from None
    return found
