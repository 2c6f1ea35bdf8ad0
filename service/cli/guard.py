"""`dosirak guard hash | check` hash the n-grams of protected texts, and show what a guard file finds in a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.foreign import Listing, plain
from service.cli.terminal import Json, console, print_json, standard_input
from service.errors import InvalidRequest
from service.generation.guard import Grams, read_guard

STANDARD_INPUT = Path("-")
app = typer.Typer(no_args_is_help=True, help="What must not leave in answers.")
TextFile = Annotated[Path, typer.Argument(help="A file of UTF-8 text; - reads standard input.")]


@app.command("hash")
def hash_texts(
    texts: Annotated[list[Path], typer.Argument(help="Files of UTF-8 text.")],
    output: Annotated[Path, typer.Option(help="The file of n-grams to write.")],
) -> None:
    """Hash protected texts into a file of n-grams, for the guard file's `corpus`."""
    grams = Grams.of(_read(path) for path in texts)
    grams.write(output)
    console.print(plain(f"{output}: {len(grams.hashes)} n-grams of {len(texts)} files; readable by you alone"))


@app.command()
def check(
    text: TextFile,
    file: Annotated[Path, typer.Option(help="The guard file.")],
    json: Json = False,
) -> None:
    """Show what a guard file finds in a text, and what would be left of it."""
    text_filter = read_guard(file).text_filter()
    released = text_filter.push(_read(text)) + text_filter.finish()
    if json:
        findings = [{"rule": each.rule, "action": each.action, "count": each.count} for each in text_filter.findings]
        print_json({"guard": findings, "stopped": text_filter.stopped, "text": released})
        return
    table = Listing("rule", "action", "found")
    for finding in text_filter.findings:
        table.add_row(finding.rule, finding.action, str(finding.count))
    console.print(table)
    console.print(plain(released), soft_wrap=True)


def _read(path: Path) -> str:
    try:
        return standard_input().read() if path == STANDARD_INPUT else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read as UTF-8 text: {error}") from None
