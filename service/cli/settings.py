"""The settings of a command: of the environment and of a settings file. A wrong one is a sentence that names its
variable or its line, and exit status 2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from service.environment import add_to_environment
from service.errors import DosirakError
from service.settings import PREFIX, Settings, refused_names, sentences

MOST_BYTES: Final = 64 * 1024
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTES: Final = ('"', "'")


class WrongFile(DosirakError):
    """The file is no settings file. `sentences` has one for each wrong line, with its number."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("\n".join(self.sentences))


@dataclass(frozen=True, slots=True)
class Line:
    """One setting of a file: its value, and the number of its line, from 1."""

    value: str
    number: int


def read_settings_file(path: Path) -> dict[str, Line]:
    """Returns the lines by the settings' variables. Raises WrongFile for a file that cannot be read, and for lines that
    are no settings."""
    return parse(_text(path), str(path))


def parse(text: str, name: str) -> dict[str, Line]:
    """Does as `read_settings_file`, for the text of a file that is called `name`."""
    lines, wrong = dict[str, Line](), list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        variable, separator, value = (part.strip() for part in stripped.partition("="))
        variable = variable.upper() if variable.upper().startswith(PREFIX) else variable
        if problem := next(_problems(variable, separator, value, lines), None):
            wrong.append(f"{name}, line {number}: {problem}")
        else:
            lines[variable] = Line(value, number)
    if wrong:
        raise WrongFile(wrong)
    return lines


def _problems(variable: str, separator: str, value: str, lines: dict[str, Line]) -> Iterator[str]:
    """Yields what is wrong with a line, each with the way out."""
    if not separator or not _NAME.fullmatch(variable):
        yield f"a line is NAME=value, as in {PREFIX}PORT=3000, or a comment that begins with #"
    if not variable.startswith(PREFIX):
        yield f"{variable} is no setting: names begin with {PREFIX}; docs/settings.md lists what there is"
    yield from refused_names([variable], Settings.model_fields)
    if variable in lines:
        yield f"{variable} is set in line {lines[variable].number} already: remove one of both"
    if value.startswith(_QUOTES) or value.endswith(_QUOTES):
        yield f"{variable}: take the quotes out, for docker's --env-file would keep them"
    if " #" in value:
        yield f"{variable}: put the comment on a line of its own, for docker's --env-file would keep it"


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise WrongFile([f"{path} is larger than {MOST_BYTES // 1024} kB: it is no settings file"])
        return raw.decode("utf-8")
    except OSError as error:
        raise WrongFile([f"{path} cannot be read ({error.strerror}): name a file as dosirak tune writes"]) from None
    except UnicodeDecodeError:
        raise WrongFile([f"{path} is no text in UTF-8: it is no settings file"]) from None


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
