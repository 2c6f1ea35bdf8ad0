"""`dosirak model promote | rollback | history` set and show where an alias points, and why."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from models.manifest import DEFAULT_ALIAS
from service.cli.settings import settings_or_exit
from service.cli.terminal import Alias, Json, Name, Reason, Version, console, print_json, repository, who


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
    if json:
        print_json([asdict(entry) for entry in entries])
        return
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
    console.print(table)


def _print_change(name: str, entry: dict[str, Any], json: bool) -> None:
    if json:
        print_json({"model": name, **entry})
        return
    console.print(f"{name}@{entry['alias']} is now {name}:{entry['version']}")
    for broken in entry["overridden"]:
        console.print(f"[yellow]overridden[/]: {broken}")
