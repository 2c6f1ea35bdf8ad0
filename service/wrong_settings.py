"""A wrong setting is a sentence that names its variable and the way out, for every program that reads settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.device_names import absent
from service.host import num_gpus
from service.settings import Settings, visible_gpus


def settings_or_exit() -> Settings:
    """Returns the settings; ends the process with a line for each wrong one. `bentoml serve` would show a traceback."""
    try:
        settings = Settings()
    except ValidationError as error:
        sys.exit("\n".join(f"{name}: {sentence}" for name, sentence in sentences(error)))
    if sentence := absent(settings.device_list, num_gpus(visible_gpus())):
        sys.exit(f"DOSIRAK_DEVICES: {sentence}")
    return settings


def sentences(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yields the variable's name and what is wrong with its value, for each problem of the settings."""
    for problem in error.errors():
        name = "_".join(["DOSIRAK", *map(str, problem["loc"])]).upper() if problem["loc"] else "settings"
        yield name, f"{problem['msg']}{_way_out(problem)}"


def _way_out(problem: ErrorDetails) -> str:
    """Returns the end of the sentence about a wrong value: its default. The settings' own sentences have their ends."""
    field = Settings.model_fields.get(str(problem["loc"][0])) if problem["loc"] else None
    if field is None or problem["type"] == "value_error":
        return ""
    return f"; remove the variable for its default{'' if field.default is None else f', {field.default}'}"
