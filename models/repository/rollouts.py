"""A rollout puts a version on trial under an alias, with part of the traffic, within limits.

It knows records (`rollout_record`). Only `promote` moves an alias.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from models.errors import Conflict, NotFound, Stale
from models.repository import gate, rollout_record
from models.repository.disk.journal import timestamp
from models.repository.repository import Repository
from models.repository.rollout_record import ROLLOUTS, Rollout, RolloutLimits, State

__all__ = [
    "ROLLOUTS",
    "WENT_WELL",
    "Rollout",
    "RolloutLimits",
    "State",
    "all_running",
    "end",
    "history",
    "promote",
    "put",
    "running",
]
Change = Callable[[Rollout], Rollout]
WENT_WELL: Final = "the rollout went well"
"""The reason of a promotion that has no other."""


def running(repository: Repository, name: str, alias: str) -> Rollout | None:
    """The rollout under way, if its alias was not moved since it began. Raises Corrupt."""
    return rollout_record.under_way(history(repository, name, alias), repository.history(name, alias))


def all_running(repository: Repository) -> list[Rollout]:
    """Returns the running rollouts of all models and aliases. It skips damaged ones, and those without an alias."""
    return list(rollout_record.all_running(repository.records))


def history(repository: Repository, name: str, alias: str) -> list[Rollout]:
    """Every rollout of an alias, oldest first. Raises Corrupt."""
    return rollout_record.read(repository.records, name, alias)


def put(
    repository: Repository,
    planned: Rollout,
    limits: gate.Limits | None = None,
    expected: str | None = None,
    change: Change | None = None,
) -> Rollout:
    """Begin a rollout, or change the weight, limits and shadowing of the one that runs with this candidate: to those of
    `planned`, or to what `change` makes of the one that runs.

    `expected` is that of `Repository.promote`. Raises NotFound for a version or alias that is not there, Conflict for
    another candidate under way, for one that the alias points to already, or whose report breaks `limits`, and Stale
    for `expected`.
    """
    with repository.locked(planned.name):
        candidate = repository.get(planned.name, planned.candidate)
        base = repository.compare(planned.name, planned.alias, expected)
        broken = repository.broken_limits(candidate, planned.alias, limits) if limits else ()
        if broken:
            raise Conflict(
                f"{candidate.reference} breaks the gate's limits: {'; '.join(broken)}. Roll out another version, or "
                "override"
            )
        if base is None:
            raise NotFound(f"{planned.name} has no alias {planned.alias!r} to roll out under; promote a version first")
        if base == planned.candidate:
            raise Conflict(f"{planned.name}@{planned.alias} points to {candidate.reference} already")
        earlier = history(repository, planned.name, planned.alias)
        under_way = running(repository, planned.name, planned.alias)
        if under_way is not None and under_way.candidate != planned.candidate:
            raise Conflict(f"{under_way.reference} is being rolled out; abort or promote it first")
        if under_way is not None:
            planned = change(under_way) if change else planned
            started, earlier = under_way.started_at, earlier[:-1]
        else:
            started, earlier = _start(repository, planned, earlier), _closed(earlier)
        rollout = msgspec.structs.replace(planned, base=base, started_at=started)
        _write(repository, [*earlier, rollout])
    return rollout


def end(
    repository: Repository,
    name: str,
    alias: str,
    state: State,
    reason: str,
    began: str | None = None,
    expected: str | None = None,
) -> Rollout:
    """Close the running rollout; with `began`, only the one that started then. Promotes nothing. `expected` is that of
    `Repository.promote`. Raises NotFound if there is none, Stale if another one runs or for `expected`."""
    with repository.locked(name):
        under_way = _under_way(repository, name, alias, expected, began)
        return _close(repository, under_way, state, reason)


def promote(
    repository: Repository,
    name: str,
    alias: str,
    reason: str,
    actor: str = "",
    limits: gate.Limits | None = None,
    override: bool = False,
    expected: str | None = None,
) -> Rollout:
    """Point the alias to the candidate, which ends the rollout; `limits`, `override` and `expected` are those of
    `Repository.promote`: the candidate may have been measured since the rollout began. Raises NotFound if there is
    none, and as `Repository.promote`. The alias moves first. A crash in between leaves a rollout whose base the alias
    has left, which no longer counts."""
    reason = reason if override else reason or WENT_WELL
    under_way = _under_way(repository, name, alias, expected)
    still_runs = partial(_under_way, repository, name, alias, under_way.base, under_way.started_at)
    repository.promote(
        name,
        alias,
        under_way.candidate,
        reason,
        actor,
        expected=under_way.base,
        limits=limits,
        override=override,
        require=still_runs,
    )
    with repository.locked(name):
        return _close(repository, under_way, "promoted", reason)


def _under_way(
    repository: Repository, name: str, alias: str, expected: str | None, began: str | None = None
) -> Rollout:
    """Returns the rollout that runs on the version `expected` of the alias; with `began`, only the one that started
    then. Raises Stale and NotFound."""
    under_way = running(repository, name, alias)
    base = repository.compare(name, alias, expected)
    if under_way is None or under_way.base != base:
        raise NotFound(f"There is no rollout of {name}@{alias}")
    if began not in (None, under_way.started_at):
        raise Stale(f"{under_way.reference} is being rolled out since {under_way.started_at}, not since {began}")
    return under_way


def _close(repository: Repository, rollout: Rollout, state: State, reason: str) -> Rollout:
    """Ends a rollout in its place: a later one may have begun since its alias moved."""
    ended = msgspec.structs.replace(rollout, state=state, reason=reason, ended_at=_now())
    known = history(repository, rollout.name, rollout.alias)
    _write(repository, [ended if each.started_at == rollout.started_at else each for each in known])
    return ended


def _closed(rollouts: list[Rollout]) -> list[Rollout]:
    """Returns the rollouts, with the running one marked as aborted if the alias was moved by hand."""
    return [
        msgspec.structs.replace(each, state="aborted", reason="the alias was moved", ended_at=_now())
        if each.state == "running"
        else each
        for each in rollouts
    ]


def _write(repository: Repository, rollouts: list[Rollout]) -> None:
    document = rollout_record.document_of(rollouts[-1].name, rollouts[-1].alias)
    repository.records.put_document(ROLLOUTS, document, msgspec.json.encode(rollouts))


def _start(repository: Repository, planned: Rollout, earlier: list[Rollout]) -> str:
    """Returns when a rollout begins: later than its alias was moved and than every earlier rollout began, whatever the
    clocks of the instances say."""
    moves = repository.history(planned.name, planned.alias)
    latest = max([*(each.time for each in moves[-1:]), *(each.started_at for each in earlier)], default="")
    now = _now()
    return now if now > latest else timestamp(datetime.fromisoformat(latest) + timedelta(microseconds=1))


def _now() -> str:
    return timestamp(datetime.now(UTC))
