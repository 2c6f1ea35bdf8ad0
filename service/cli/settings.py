"""This module reads the settings for a command: a wrong one is a sentence that names its variable, and exit status
2."""

from __future__ import annotations

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from rich.console import Console
from rich.text import Text

from service.settings import Settings


def settings_or_exit(console: Console) -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(["DOSIRAK", *map(str, problem["loc"])]).upper()
            told = Text.assemble((name if problem["loc"] else "settings", "red"), f": {problem['msg']}")
            console.print(told.append(_way_out(problem)), soft_wrap=True)
        raise typer.Exit(2) from None


def _way_out(problem: ErrorDetails) -> str:
    """Returns the end of the sentence about a wrong value: its default. The settings' own sentences have their ends."""
    field = Settings.model_fields.get(str(problem["loc"][0])) if problem["loc"] else None
    if field is None or problem["type"] == "value_error":
        return ""
    return f"; remove the variable for its default{'' if field.default is None else f', {field.default}'}"
