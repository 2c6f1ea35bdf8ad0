"""`dosirak model rollout` puts a candidate version on trial under an alias. A running server follows within a
second."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from models.errors import InvalidReference
from models.repository import rollouts
from models.repository.rollouts import Rollout, RolloutLimits
from service.cli.settings import settings_or_exit
from service.cli.terminal import Alias, Json, Name, Reason, console, print_json, repository, who


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
        wanted = Rollout(name, alias, "", candidate, weight, sticky, shadow, RolloutLimits(), "")
        rollouts.put(store, wanted, settings_or_exit(console).gate(alias))
    elif promote:
        rollouts.promote(store, name, alias, reason or "the rollout went well", who())
    elif abort:
        rollouts.end(store, name, alias, "aborted", reason)
    found = rollouts.history(store, name, alias)
    if json:
        print_json(msgspec.to_builtins(found))
        return
    table = Table("candidate", "weight", "state", "began", "ended", "reason")
    for each in found:
        weighed = f"{each.weight:g} %" + (", shadow" if each.shadow else "")
        table.add_row(each.reference, weighed, each.state, each.started_at, each.ended_at or "–", each.reason)
    console.print(table)
