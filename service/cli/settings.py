"""This module reads the settings for a command: a wrong one is a sentence that names its variable, and exit status
2."""

from __future__ import annotations

import typer
from pydantic import ValidationError
from rich.console import Console

from service.settings import Settings


def settings_or_exit(console: Console) -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(["DOSIRAK", *map(str, problem["loc"])]).upper()
            console.print(f"[red]{name if problem['loc'] else 'settings'}[/]: {problem['msg']}")
        raise typer.Exit(2) from None
