"""The `dosirak` command. Each verb calls the package that does the work; no logic of its own.

Torch is imported only by the verbs that need it, so `dosirak --help` stays quick.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from models.errors import RepositoryError
from models.manifest import ModelReference
from models.repository import DEFAULT_ALIAS, Repository
from service.errors import DosirakError
from service.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Serve versioned text-generation models.")
model = typer.Typer(no_args_is_help=True, help="The model repository: versions, aliases, history.")
app.add_typer(model, name="model")
console = Console()


def settings_or_exit() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(["DOSIRAK", *map(str, problem["loc"])]).upper()
            console.print(f"[red]{name if problem['loc'] else 'settings'}[/]: {problem['msg']}")
        raise typer.Exit(2) from None


def repository() -> Repository:
    return Repository(settings_or_exit().data_dir)


def demo_versions() -> list[str]:
    """Both versions of the demo model; a fresh installation gets them now. Imports torch."""
    from models.starter import WEIGHTS, demo_is_wanted, publish_demo

    store = repository()
    if demo_is_wanted(store):
        publish_demo(store, WEIGHTS)
    return ["demo:1", "demo:2"]


@app.command()
def serve() -> None:
    """Publish the demo model if there is none, run `bentoml serve`, show one real streamed answer."""
    from service.serving import serve as run

    raise typer.Exit(run(settings_or_exit(), console))


@app.command()
def recall(
    references: Annotated[list[str] | None, typer.Argument(help="Model references to measure.")] = None,
    questions: Annotated[int, typer.Option(help="Questions in each cell of the table.")] = 100,
) -> None:
    """How often the demo model recalls a fact, by distance and wording, side by side for each version."""
    from service.recall import print_table

    print_table(settings_or_exit(), references or demo_versions(), questions, console)


@app.command()
def compare(
    references: Annotated[
        list[str] | None, typer.Argument(help="Model references; the first is compared with.")
    ] = None,
    texts: Annotated[int, typer.Option(help="Dialogues to predict.")] = 100,
    int8_kv: Annotated[bool, typer.Option("--int8-kv", help="Each with 8-bit keys and values as well.")] = False,
) -> None:
    """Perplexity and top-1 agreement of versions on the same text, as the engine serves them."""
    from service.quality import print_comparison

    print_comparison(settings_or_exit(), references or demo_versions(), texts, console, int8_kv)


@model.command("list")
def list_models() -> None:
    """All versions with precision, size, digest and the aliases that point to them."""
    store = repository()
    table = Table("model", "precision", "parameters", "size", "window", "digest", "aliases")
    for name in store.models():
        aliases = store.aliases(name)
        for manifest in store.versions(name):
            held = ", ".join(sorted(alias for alias, version in aliases.items() if version == manifest.version))
            table.add_row(
                manifest.reference,
                manifest.precision,
                f"{manifest.parameters / 1e6:.1f} M",
                f"{manifest.size / 1e6:.1f} MB",
                str(manifest.context_window),
                manifest.short_digest,
                held,
            )
    console.print(table)


@model.command("import")
def import_model(
    source: Annotated[str, typer.Argument(help="A Hugging Face directory, or a hub id such as org/name.")],
    name: Annotated[str, typer.Argument(help="Name in the repository, or name:version.")],
    precision: Annotated[str, typer.Option(help="bf16, fp32, or int8 (publishes the bf16 version as well).")] = "bf16",
    revision: Annotated[str | None, typer.Option(help="Revision of a hub id.")] = None,
) -> None:
    """Check a checkpoint (safetensors only, no remote code) and publish it as a new version."""
    from models.importing import import_source

    target = ModelReference.parse(name)
    manifest = import_source(
        repository(), source, target.name, version=target.version, precision=precision, revision=revision
    )
    console.print(f"published {manifest.reference} ({manifest.precision}, digest {manifest.short_digest})")


@model.command()
def quantize(
    reference: Annotated[str, typer.Argument(help="The version to convert.")],
    precision: Annotated[str, typer.Option(help="int8.")] = "int8",
) -> None:
    """Convert a version into a new one that names it as its parent."""
    from models.quantize import quantize as convert

    store = repository()
    manifest = convert(store, store.resolve(reference), precision)
    console.print(f"published {manifest.reference} ({manifest.precision}, digest {manifest.short_digest})")


@model.command()
def verify(reference: Annotated[str, typer.Argument(help="The version to check.")]) -> None:
    """Read every file of a version again and compare with its manifest."""
    store = repository()
    manifest = store.resolve(reference)
    store.verify(manifest)
    console.print(f"{manifest.reference}: {len(manifest.files)} files as published, digest {manifest.short_digest}")


@model.command()
def promote(
    reference: Annotated[str, typer.Argument(help="An exact version, name:version.")],
    alias: Annotated[str, typer.Option(help="The alias to move.")] = DEFAULT_ALIAS,
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")] = "",
) -> None:
    """Point an alias at a version."""
    store = repository()
    manifest = store.resolve(reference)
    store.promote(manifest.name, alias, manifest.version, reason)
    console.print(f"{manifest.name}@{alias} is now {manifest.reference}")


@model.command()
def rollback(
    name: Annotated[str, typer.Argument(help="The model.")],
    alias: Annotated[str, typer.Option(help="The alias to move back.")] = DEFAULT_ALIAS,
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")] = "",
) -> None:
    """Point an alias back at the version before."""
    entry = repository().rollback(name, alias, reason)
    console.print(f"{name}@{alias} is now {name}:{entry.version}")


def main() -> None:
    """The console script: a refusal is one sentence and exit status 1, never a traceback."""
    try:
        app()
    except (RepositoryError, DosirakError) as error:
        console.print(f"[red]error[/]: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
