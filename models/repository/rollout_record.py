"""A rollout record says which version is, or was, on trial under an alias. This module reads records and changes none.

document rollouts, <name>/<alias>   every rollout of the alias, the running one last
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec

from models.errors import Corrupt, InvalidReference
from models.manifest import ModelReference
from models.repository.disk.journal import Entry
from models.repository.disk.records import Records

ROLLOUTS: Final = "rollouts"
State = Literal["running", "promoted", "aborted", "rolled_back"]


class RolloutLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits that roll a candidate back by themselves, once it has had `min_requests`: a larger share of errors
    than `error_rate`, or a TTFT p95 of more than `ttft_p95_ratio` times that of the base version."""

    error_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05
    ttft_p95_ratio: Annotated[float, msgspec.Meta(gt=0)] = 3.0
    min_requests: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 20


class Rollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`weight` percent of the conversations go to `candidate` instead of `base`, which the alias points to all the
    while. `sticky`: a conversation stays where it began. `shadow`: answers of `base` are compared with the
    candidate's, which no client receives."""

    name: str
    alias: str
    base: str
    candidate: str
    weight: float
    sticky: bool
    shadow: bool
    limits: RolloutLimits = msgspec.field(name="guards")
    started_at: str
    state: State = "running"
    ended_at: str = ""
    reason: str = ""

    @property
    def reference(self) -> str:
        """Of the candidate."""
        return f"{self.name}:{self.candidate}"


def document_of(name: str, alias: str) -> str:
    """Returns the name of an alias's document. Raises InvalidReference."""
    ModelReference(name, alias=alias)
    return f"{name}/{alias}"


def read(records: Records, name: str, alias: str) -> list[Rollout]:
    """Returns every rollout of an alias, oldest first. Raises Corrupt."""
    content = records.document(ROLLOUTS, document_of(name, alias))
    if content is None:
        return []
    try:
        return msgspec.json.decode(content, type=list[Rollout])
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"The rollouts of {name}@{alias} are damaged, or a newer release wrote them: {error}; run that release, or "
            "remove them"
        ) from None


def under_way(found: Sequence[Rollout], moves: Sequence[Entry]) -> Rollout | None:
    """Returns the running one of an alias's rollouts, if the alias was not moved since it began."""
    if not found or found[-1].state != "running" or not moves:
        return None
    unmoved = moves[-1].version == found[-1].base and moves[-1].time <= found[-1].started_at
    return found[-1] if unmoved else None


def all_running(records: Records) -> Iterator[Rollout]:
    """Yields the running rollouts of all models and aliases. It skips damaged ones, and those without an alias."""
    for document in records.documents(ROLLOUTS):
        name, _, alias = document.partition("/")
        try:
            moves = [entry for entry in records.history(name).entries if entry.alias == alias]
            rollout = under_way(read(records, name, alias), moves)
        except (Corrupt, InvalidReference):
            continue
        if rollout is not None:
            yield rollout
