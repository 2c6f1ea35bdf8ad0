"""The terminal's parts that all verbs share: the console, common options with their completion in a shell, the
repository and the actor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, TextIO

import msgspec
import typer
from pydantic import ValidationError
from rich.console import Console, RenderableType

from models.errors import RepositoryError
from models.imports.catalogue import entries
from models.repository.repository import Repository
from service.cli.foreign import plain
from service.cli.settings import settings_or_exit
from service.errors import InvalidRequest
from service.settings import Settings
from service.storage.records import open_repository


def complete_reference(incomplete: str) -> list[str]:
    """Returns the references that begin as typed: `name`, `name:version` and `name@alias`."""
    return [each for each in _silently() if each.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Returns the references and the catalogue's names that begin as typed."""
    known = complete_reference(incomplete)
    return known + [name for name in entries() if name.startswith(incomplete) and name not in known]


def complete_name(incomplete: str) -> list[str]:
    """Returns the names of models that begin as typed."""
    return [each for each in _silently() if each.startswith(incomplete) and not {":", "@"} & set(each)]


def _silently() -> list[str]:
    try:
        directory = Settings().data_dir
        return list(_references(Repository(directory))) if directory.is_dir() else []
    except (ValidationError, RepositoryError, OSError):
        return []


def _references(store: Repository) -> Iterator[str]:
    for name in store.models():
        yield name
        yield from (manifest.reference for manifest in store.versions(name))
        yield from (f"{name}@{alias}" for alias in store.aliases(name))


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


def standard_input() -> TextIO:
    """Returns the standard input. Raises InvalidRequest where a shell has closed it, as `<&-` does."""
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed: open it, as in </dev/null or by a pipe")
    return sys.stdin


def repository() -> Repository:
    return open_repository(settings_or_exit(console))


def who() -> str:
    return settings_or_exit(console).who


def answer(json: bool, value: object, shown: RenderableType, *, soft_wrap: bool = False) -> None:
    """Prints the value as JSON, or what a person is shown of it. A sentence may hold texts of others."""
    if json:
        print_json(value)
    else:
        console.print(plain(shown) if isinstance(shown, str) else shown, soft_wrap=soft_wrap)


def print_json(value: object) -> None:
    console.print_json(msgspec.json.encode(value).decode())
