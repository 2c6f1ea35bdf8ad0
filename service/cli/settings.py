"""This module reads the settings for a command: a wrong one is a sentence that names its variable, and exit status
2."""

from __future__ import annotations

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from service.settings import Settings
from service.wrong_settings import sentences


def settings_or_exit(console: Console) -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for name, sentence in sentences(error):
            console.print(Text.assemble((name, "red"), f": {sentence}"), soft_wrap=True)
        raise typer.Exit(2) from None
