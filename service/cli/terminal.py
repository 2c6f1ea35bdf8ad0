"""This module holds the terminal's parts that all verbs share: the console, common options, the repository and the
actor."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from models.repository.repository import Repository
from service.cli.completion import complete_name, complete_reference
from service.cli.settings import settings_or_exit
from service.storage.records import open_repository

console = Console()

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Reference = Annotated[
    str,
    typer.Argument(help="A model reference: name, name:version or name@alias.", autocompletion=complete_reference),
]
Version = Annotated[str, typer.Argument(help="An exact version, name:version.", autocompletion=complete_reference)]
Name = Annotated[str, typer.Argument(help="The model.", autocompletion=complete_name)]
Alias = Annotated[str, typer.Option(help="The alias.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the history.")]


def repository() -> Repository:
    return open_repository(settings_or_exit(console))


def who() -> str:
    return settings_or_exit(console).who


def print_json(value: object) -> None:
    console.print_json(msgspec.json.encode(value).decode())
