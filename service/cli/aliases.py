"""`dosirak model promote | rollback | history | rollout` move aliases, and put a candidate version on trial under
one. A running server follows within a second."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from models.errors import InvalidReference, NotFound
from models.manifest import DEFAULT_ALIAS
from models.repository import rollouts
from models.repository.repository import Repository
from models.repository.rollouts import Rollout, RolloutLimits
from service.cli.audit import tell
from service.cli.foreign import Listing, plain
from service.cli.settings import settings_or_exit
from service.cli.terminal import Alias, Json, Name, Reason, Version, answer, console, print_json, repository


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
    before = store.history(manifest.name, alias)
    entry = store.promote(
        manifest.name, alias, manifest.version, reason, settings.who, limits=settings.gate(alias), override=override
    )
    _print_change(manifest.name, asdict(entry), json, is_change=entry not in before)


def rollback(
    name: Name,
    alias: Alias = DEFAULT_ALIAS,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Point an alias back at the version before; the gate refuses nothing, and shows what that version breaks."""
    settings = settings_or_exit(console)
    entry = repository().rollback(name, alias, reason, settings.who, limits=settings.gate(alias))
    _print_change(name, asdict(entry), json)


def history(
    name: Name,
    alias: Alias = DEFAULT_ALIAS,
    at: Annotated[
        datetime | None, typer.Option(help="Only what was in force at this time; of UTC, if it names no zone.")
    ] = None,
    json: Json = False,
) -> None:
    """The history of an alias: every change with its author, time and reason."""
    store = repository()
    store.require_known(name)
    entries = store.history(name, alias, _zoned(at) if at else None)
    table = Listing("time", "who", "change", "version", "before", "reason", "overridden")
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


def _print_change(name: str, entry: dict[str, Any], json: bool, is_change: bool = True) -> None:
    if is_change:
        tell(f"aliases.{entry['action']}", f"{name}@{entry['alias']}", version=entry["version"])
    if json:
        print_json({"model": name, **entry})
        return
    if not is_change:
        console.print(f"{name}@{entry['alias']} is {name}:{entry['version']} already")
        return
    console.print(f"{name}@{entry['alias']} is now {name}:{entry['version']}")
    for broken in entry["overridden"]:
        console.print(Text.assemble(("overridden", "yellow"), ": ", plain(broken)))


def _zoned(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except OverflowError:
        raise typer.BadParameter("this time lies outside of UTC's years 1 to 9999") from None


def rollout(
    name: Name,
    alias: Alias = "production",
    candidate: Annotated[str | None, typer.Option(help="Begin with this version, or change its weight.")] = None,
    weight: Annotated[
        float | None, typer.Option(min=0, max=100, help="Percent of the conversations; 10 at the beginning.")
    ] = None,
    sticky: Annotated[bool | None, typer.Option(help="A conversation stays where it began, unless told.")] = None,
    shadow: Annotated[bool | None, typer.Option(help="Compare answers that nobody receives.")] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Point the alias to the candidate.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Send everybody back.")] = False,
    override: Annotated[
        bool,
        typer.Option("--override", help="Also where its report breaks the gate's limits; promoting takes a reason."),
    ] = False,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Begin, change, promote or abort a rollout; without an option, show what was rolled out."""
    changes = {"candidate": candidate, "weight": weight, "sticky": sticky, "shadow": shadow}
    changes = {option: value for option, value in changes.items() if value is not None}
    if sum((bool(changes), promote, abort)) > 1:
        raise InvalidReference(
            "--candidate, --weight, --sticky and --shadow begin or change a rollout, --promote and --abort end it: "
            "choose one"
        )
    if reason and not (promote or abort):
        raise InvalidReference("--reason is kept with a rollout's end: give it with --promote or --abort")
    if override and not (changes or promote):
        raise InvalidReference("--override is for the gate: give it with --candidate, --weight, --shadow or --promote")
    settings, store = settings_or_exit(console), repository()
    limits = settings.gate(alias)
    if changes:
        planned, change = _planned(store, name, alias, changes), partial(msgspec.structs.replace, **changes)
        put = rollouts.put(store, planned, None if override else limits, change=change)
        tell("rollouts.put", f"{name}@{alias}", candidate=put.candidate, weight=put.weight, shadow=put.shadow)
    elif promote:
        rollouts.promote(store, name, alias, reason, settings.who, limits, override)
        tell("rollouts.promote", f"{name}@{alias}")
    elif abort:
        rollouts.end(store, name, alias, "aborted", reason)
        tell("rollouts.abort", f"{name}@{alias}")
    else:
        store.require_known(name)
    past = rollouts.history(store, name, alias)
    table = Listing("candidate", "weight", "state", "began", "ended", "reason")
    for each in past:
        weighed = f"{each.weight:g} %" + (", shadow" if each.shadow else "")
        table.add_row(each.reference, weighed, each.state, each.started_at, each.ended_at or "–", each.reason)
    answer(json, msgspec.to_builtins(past), table)


def _planned(store: Repository, name: str, alias: str, changes: dict[str, Any]) -> Rollout:
    """Returns the running rollout with `changes`; with another candidate, a new one. Raises NotFound where there is
    none to change."""
    running = rollouts.running(store, name, alias)
    candidate = changes.get("candidate", running and running.candidate)
    if candidate is None:
        raise NotFound(f"There is no rollout of {name}@{alias} to change; begin one with --candidate")
    if running is None or running.candidate != candidate:
        running = Rollout(name, alias, "", candidate, 10.0, True, False, RolloutLimits(), "")
    return msgspec.structs.replace(running, **changes)
