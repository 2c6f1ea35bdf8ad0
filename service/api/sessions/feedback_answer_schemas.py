"""These models describe answers about votes: a vote, and the counts of versions."""

from __future__ import annotations

from typing import Literal

from service.api.shared.answer_schemas import Page, Shown, Time


class VoteShown(Shown):
    """`id` is the answer's. `created` is the last time that the vote was given."""

    id: str
    model: str | None
    version: str | None
    digest: str | None
    rating: Literal[1, -1]
    preferred_over: str | None
    comment: str | None
    session_id: str
    created: Time


class VotePage(Page[VoteShown]):
    """Newest first."""


class TallyShown(Shown):
    """`votes` is the sum of both counts. A vote with `preferred_over` counts for one answer and against the other."""

    model: str | None
    version: str | None
    preferred: int
    not_preferred: int
    votes: int


class Tallies(Shown):
    data: list[TallyShown]
