"""The `dosirak` command calls, for each verb, the package that does the work; it has no logic of its own.

Only the verbs that need torch import it, so `dosirak --help` stays quick.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Annotated, NoReturn

import structlog
import typer
from rich.text import Text

from models import __version__
from models.errors import RepositoryError
from service.cli import audit, guard, keys, models, store
from service.cli.doctor.command import doctor as doctor_command
from service.cli.examples import COMMON, put_examples
from service.cli.foreign import plain
from service.cli.node import node
from service.cli.serve.checks import CannotStart, check_directory
from service.cli.serve.command import serve as serve_command
from service.cli.settings import settings_or_exit
from service.cli.terminal import complete_reference, console, repository
from service.cli.tune import tune
from service.errors import DosirakError, NoEngine
from service.host import has_torch

app = typer.Typer(no_args_is_help=True)
app.add_typer(models.app, name="model")
app.add_typer(guard.app, name="guard")
app.add_typer(store.app, name="store")
app.add_typer(audit.app, name="audit")
app.add_typer(keys.app, name="keys")
app.command()(doctor_command)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        console.print(f"dosirak {__version__}", highlight=False)
        raise typer.Exit


@app.callback(epilog=COMMON)
def dosirak(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve versioned text-generation models."""


def demo_versions() -> list[str]:
    """Returns both versions of the demo model; a fresh installation gets them now. Imports torch."""
    from models.imports.starter import WEIGHTS, demo_is_wanted, publish_demo

    known = repository()
    if demo_is_wanted(known):
        publish_demo(known, WEIGHTS)
    return ["demo:1", "demo:2"]


app.command()(serve_command)
app.command()(node)
app.command()(tune)


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number: give one, as 0.7")
    return value


@app.command("chat")
def talk(
    url: Annotated[
        str | None, typer.Option(help="The server; where DOSIRAK_HOST and DOSIRAK_PORT say, if unset.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model reference of the session.", autocompletion=complete_reference)
    ] = None,
    session: Annotated[str | None, typer.Option(help="Go on with this session.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="What is left out where not all fits: window, middle, summarise, retrieve or refuse."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The session's system prompt.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    temperature: Annotated[
        float | None, typer.Option(callback=_finite, help="0 takes the likeliest token each time.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same draws again.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a turn.")] = False,
) -> None:
    """Talk to a running server; see what of the chat fits its window. Piped in, a line is a message."""
    from service.cli.chat import run
    from service.cli.client import Client
    from service.cli.serve.checks import address, authorization

    settings = settings_or_exit(console)
    fields = {"model": model, "policy": policy, "system": system}
    parameters = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    client = Client.of(url or address(settings), authorization(settings))
    raise typer.Exit(run(client, session, _present(fields), _present(parameters), console, json))


def _present(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


@app.command()
def recall(
    references: Annotated[
        list[str] | None, typer.Argument(help="Model references to measure.", autocompletion=complete_reference)
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions in each cell of the table.")] = 100,
    policies: Annotated[bool, typer.Option("--policies", help="By context policy, in chats past the window.")] = False,
) -> None:
    """How often the demo model recalls a fact, by distance and wording, side by side for each version."""
    if policies:
        if references and len(references) > 1:
            raise typer.BadParameter("--policies measures one version: name one")
        from service.evaluation.policies import print_policies

        print_policies(settings_or_exit(console), (references or demo_versions()[-1:])[0], questions, console)
        return
    from service.evaluation.recall import print_table

    print_table(settings_or_exit(console), references or demo_versions(), questions, console)


@app.command()
def compare(
    references: Annotated[
        list[str] | None,
        typer.Argument(help="Model references; the first is compared with.", autocompletion=complete_reference),
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="Dialogues to predict.")] = 100,
    int8_kv: Annotated[bool, typer.Option("--int8-kv", help="Each with 8-bit keys and values as well.")] = False,
) -> None:
    """Perplexity and top-1 agreement of versions on the same text, as the engine serves them."""
    from service.evaluation.comparison import print_comparison

    print_comparison(settings_or_exit(console), references or demo_versions(), texts, console, int8_kv)


put_examples(app)


def main() -> None:
    """Runs the console script: a refusal is one sentence and exit status 1, never a traceback. Lines of the log go to
    standard error."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    try:
        app()
    except (RepositoryError, DosirakError) as error:
        _refuse(error)
    except ModuleNotFoundError:
        if has_torch():
            raise
        _refuse(NoEngine())
    except OSError as error:
        try:
            check_directory(settings_or_exit(console).data_dir)
        except CannotStart as cannot:
            _refuse(cannot)
        if not (error.filename and error.strerror):
            raise
        _refuse(OSError(f"{error.filename}: {error.strerror}"))


def _refuse(error: Exception) -> NoReturn:
    console.print(Text.assemble(("error", "red"), ": ", plain(str(error))), soft_wrap=True)
    raise SystemExit(1) from None
