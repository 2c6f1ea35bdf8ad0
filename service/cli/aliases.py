"""`dosirak model promote | rollback | history | rollout` move aliases, and put a candidate version on trial under
one. A running server follows within a second."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Column, Table

from models.errors import InvalidReference
from models.manifest import DEFAULT_ALIAS
from models.repository import rollouts
from models.repository.rollouts import Rollout, RolloutLimits
from service.cli.audit import tell
from service.cli.settings import settings_or_exit
from service.cli.terminal import Alias, Json, Name, Reason, Version, answer, console, print_json, repository, who


def promote(
    reference: Version,
    alias: Alias = DEFAULT_ALIAS,
    reason: Reason = "",
    override: Annotated[
        bool, typer.Option(help="Also where its report breaks the gate's limits; takes a reason.")
    ] = False,
    json: Json = False,
) -> None:
    """Point an alias at a version. A running server loads it beside the old one and then switches."""
    settings, store = settings_or_exit(console), repository()
    manifest = store.resolve(reference)
    entry = store.promote(
        manifest.name, alias, manifest.version, reason, settings.who, limits=settings.gate(alias), override=override
    )
    _print_change(manifest.name, asdict(entry), json)


def rollback(
    name: Name,
    alias: Alias = DEFAULT_ALIAS,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Point an alias back at the version before."""
    _print_change(name, asdict(repository().rollback(name, alias, reason, who())), json)


def history(
    name: Name,
    alias: Alias = DEFAULT_ALIAS,
    at: Annotated[datetime | None, typer.Option(help="Only what was in force at this time (UTC).")] = None,
    json: Json = False,
) -> None:
    """The history of an alias: every change with its author, time and reason."""
    entries = repository().history(name, alias, at.replace(tzinfo=UTC) if at else None)
    table = Table(Column("time", overflow="fold"), "who", "change", "version", "before", "reason", "overridden")
    for entry in entries:
        table.add_row(
            entry.time,
            entry.actor or "–",
            entry.action,
            entry.version or "–",
            entry.previous or "–",
            entry.reason,
            "; ".join(entry.overridden),
        )
    answer(json, [asdict(entry) for entry in entries], table)


def _print_change(name: str, entry: dict[str, Any], json: bool) -> None:
    tell(f"aliases.{entry['action']}", f"{name}@{entry['alias']}", version=entry["version"])
    if json:
        print_json({"model": name, **entry})
        return
    console.print(f"{name}@{entry['alias']} is now {name}:{entry['version']}")
    for broken in entry["overridden"]:
        console.print(f"[yellow]overridden[/]: {broken}")


def rollout(
    name: Name,
    alias: Alias = "production",
    candidate: Annotated[str | None, typer.Option(help="Begin with this version, or change its weight.")] = None,
    weight: Annotated[float, typer.Option(min=0, max=100, help="Percent of the conversations.")] = 10.0,
    sticky: Annotated[bool, typer.Option(help="A conversation stays where it began.")] = True,
    shadow: Annotated[bool, typer.Option(help="Compare answers that nobody receives.")] = False,
    promote: Annotated[bool, typer.Option("--promote", help="Point the alias to the candidate.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Send everybody back.")] = False,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Begin, change, promote or abort a rollout; without an option, show what was rolled out."""
    if sum((candidate is not None, promote, abort)) > 1:
        raise InvalidReference("choose one of --candidate, --promote and --abort")
    store = repository()
    if candidate is not None:
        planned = Rollout(name, alias, "", candidate, weight, sticky, shadow, RolloutLimits(), "")
        rollouts.put(store, planned, settings_or_exit(console).gate(alias))
        tell("rollouts.put", f"{name}@{alias}", candidate=candidate, weight=weight, shadow=shadow)
    elif promote:
        rollouts.promote(store, name, alias, reason or "the rollout went well", who())
        tell("rollouts.promote", f"{name}@{alias}")
    elif abort:
        rollouts.end(store, name, alias, "aborted", reason)
        tell("rollouts.abort", f"{name}@{alias}")
    past = rollouts.history(store, name, alias)
    table = Table("candidate", "weight", "state", "began", "ended", "reason")
    for each in past:
        weighed = f"{each.weight:g} %" + (", shadow" if each.shadow else "")
        table.add_row(each.reference, weighed, each.state, each.started_at, each.ended_at or "–", each.reason)
    answer(json, msgspec.to_builtins(past), table)
