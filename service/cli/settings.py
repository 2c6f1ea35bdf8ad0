"""This module reads the settings for a command: a wrong one is a sentence that names its variable, and exit status
2."""

from __future__ import annotations

from pathlib import Path

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from service.cli.settings_file import WrongFile, read_settings_file
from service.settings import Settings, add_to_environment, sentences


def settings_or_exit(console: Console) -> Settings:
    return _settings(console, {})


def settings_with_file(console: Console, file: Path) -> Settings:
    """Returns the settings of the environment and of `file`, for this process and its children. The environment wins,
    and a line says so where the two differ."""
    try:
        lines = read_settings_file(file)
    except WrongFile as error:
        for sentence in error.sentences:
            console.print(Text(sentence, "red"), soft_wrap=True)
        raise typer.Exit(2) from None
    winning = add_to_environment({name: line.value for name, line in lines.items()})
    for name in winning:
        console.print(
            Text.assemble(
                ("note", "yellow"), f": {name} of the environment wins over {file}, line ", f"{lines[name].number}"
            ),
            soft_wrap=True,
        )
    return _settings(
        console, {name: f"{file}, line {line.number}: " for name, line in lines.items() if name not in winning}
    )


def _settings(console: Console, places: dict[str, str]) -> Settings:
    """Returns the settings. `places` say where a variable was set, if not in the environment."""
    try:
        return Settings()
    except ValidationError as error:
        for name, sentence in sentences(error):
            console.print(Text.assemble(places.get(name, ""), (name, "red"), f": {sentence}"), soft_wrap=True)
        raise typer.Exit(2) from None
