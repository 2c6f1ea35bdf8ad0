"""`dosirak model …` holds the repository's verbs: they print tables or JSON. Each calls the package that does the
work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import Progress
from rich.table import Column
from rich.text import Text

from models.errors import InvalidReference
from models.imports.catalogue import entries
from models.manifest import Manifest, ModelReference
from models.repository.report import Effort, Report
from models.repository.repository import Repository
from service.cli import needs
from service.cli.aliases import history, promote, rollback, rollout
from service.cli.audit import tell
from service.cli.foreign import Listing
from service.cli.reports import aliases_of, facts_of, print_reports, shown_state
from service.cli.settings import settings_or_exit
from service.cli.terminal import (
    Json,
    Reason,
    Reference,
    Version,
    answer,
    complete_reference,
    console,
    print_json,
    repository,
    who,
)

app = typer.Typer(no_args_is_help=True, help="The model repository: versions, reports, aliases, history.")
Evaluate = Annotated[str, typer.Option(help="Measure the new version: none, quick (a minute) or full.")]
NOT_NOW: Final = "none"


@contextmanager
def _progress(label: str) -> Iterator[Callable[[float, str], None]]:
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(label, total=1.0)
        yield lambda fraction, what: bar.update(task, completed=fraction, description=f"{label}: {what}")


@app.command("import")
def import_model(
    source: Annotated[
        str,
        typer.Argument(help="A directory, a tar archive, a GGUF file, a hub id org/name[:Q4_K_M] or a BentoML tag."),
    ],
    name: Annotated[str, typer.Argument(help="Name in the repository, or name:version.")],
    precision: Annotated[
        str | None,
        typer.Option(help="bf16, fp32, or int8, int8-weight, llm-int8, int4, file (the bf16 version as well)."),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a hub id.")] = None,
    adapter_of: Annotated[
        str | None, typer.Option(help="SOURCE is a PEFT LoRA adapter for this version (any reference).")
    ] = None,
    evaluate: Evaluate = NOT_NOW,
    json: Json = False,
) -> None:
    """Check a checkpoint (safetensors only, no remote code) and publish it as a new version."""
    from models.imports.importing import import_source
    from service.evaluation.texts import calibration
    from service.evaluation.trial import try_chats

    effort = None if evaluate == NOT_NOW else _effort(evaluate, NOT_NOW)  # before a version is made
    target, store = ModelReference.parse(name), repository()
    if target.alias is not None:
        raise InvalidReference(f"{name} names an alias: import to {target.name}, and promote the version behind it")
    with _progress(f"importing {name}") as progress:
        manifest = import_source(
            store,
            source,
            target.name,
            target.version,
            precision,
            revision,
            who(),
            progress,
            calibration,
            adapter_of,
            try_chats,
        )
    _published(store, manifest, "import", effort, json)


@app.command()
def quantize(
    reference: Reference,
    precision: Annotated[str, typer.Option(help="int8, int8-weight, llm-int8 or int4.")] = "int8",
    group_size: Annotated[int | None, typer.Option(help="Weights that share a scale, int4 only: 32 or 128.")] = None,
    evaluate: Evaluate = NOT_NOW,
    json: Json = False,
) -> None:
    """Convert a version into a new one that names it as its parent."""
    from models.weights.quantize import quantize as convert
    from service.evaluation.texts import calibration

    effort = None if evaluate == NOT_NOW else _effort(evaluate, NOT_NOW)  # before a version is made
    store = repository()
    with _progress(f"quantizing {reference}") as progress:
        parent = store.resolve(reference)
        manifest = convert(store, parent, precision, None, who(), progress, calibration, group_size)
    _published(store, manifest, "quantize", effort, json)


def _published(store: Repository, manifest: Manifest, how: str, effort: Effort | None, json: bool) -> None:
    tell(f"versions.{how}", manifest.reference, digest=manifest.short_digest)
    report = None if effort is None else _measured(store, manifest, effort, None, json)
    if json:
        print_json(facts_of(store, manifest))
        return
    console.print(f"published {manifest.reference} ({manifest.precision}, digest {manifest.short_digest})")
    if report is not None:
        print_reports(store, [manifest])


@app.command("evaluate")
def evaluate_version(
    reference: Reference,
    effort: Annotated[str, typer.Option(help="check (seconds), quick (a minute) or full.")] = "quick",
    text: Annotated[Path | None, typer.Option(help="A UTF-8 text file instead of the bundled ones.")] = None,
    json: Json = False,
) -> None:
    """Measure quality against the parent, and speed on this host; the report is kept with the version."""
    chosen, store = _effort(effort), repository()
    manifest = store.resolve(reference)
    report = _measured(store, manifest, chosen, text, json)
    if json:
        print_json(report)
    else:
        print_reports(store, [manifest])


def _effort(word: str, *others: str) -> Effort:
    """Returns the effort that a word names. Raises InvalidReference, which names `others` beside the efforts."""
    from service.evaluation.planning import EFFORTS

    for effort in EFFORTS:
        if effort == word:
            return effort
    raise InvalidReference(f"{word[:40]!r} is no effort; choose one of {', '.join((*others, *EFFORTS))}")


def _measured(store: Repository, manifest: Manifest, effort: Effort, text: Path | None, json: bool) -> Report:
    from service.evaluation.evaluate import evaluate, shown_seconds

    def say_forecast(seconds: float) -> None:
        if not json:
            console.print(f"measuring {manifest.reference} will take about {shown_seconds(seconds)}", highlight=False)

    with _progress(f"measuring {manifest.reference}") as progress:
        return evaluate(settings_or_exit(console), store, manifest, effort, text, progress, say_forecast)


@app.command("list")
def list_models(json: Json = False) -> None:
    """All versions with precision, size, digest and the aliases that point to them."""
    store = repository()
    manifests = [manifest for name in store.models() for manifest in store.versions(name)]
    if json:
        print_json([facts_of(store, manifest) for manifest in manifests])
        return
    widths = {
        "model": 6,
        "precision": 9,
        "weights": 7,
        "size": 6,
        "window": 6,
        "digest": 12,
        "aliases": 10,
        "report": 12,
    }
    columns = [Column(name, overflow="fold", min_width=width) for name, width in widths.items()]
    table = Listing(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for manifest in manifests:
        table.add_row(
            manifest.reference,
            manifest.precision,
            f"{manifest.parameters / 1e6:.1f} M",
            f"{manifest.size / 1e6:.1f} MB",
            str(manifest.context_window),
            manifest.short_digest,
            ", ".join(aliases_of(store, manifest)),
            shown_state(store, manifest),
        )
    console.print(table)


@app.command()
def show(reference: Reference, json: Json = False) -> None:
    """One version: its facts, lineage, files, what each module is stored in, and what was measured of it."""
    store = repository()
    manifest = store.resolve(reference)
    if json:
        print_json({**facts_of(store, manifest), "files": manifest.files, "layers": manifest.layers})
        return
    facts = Listing("", "", show_header=False, box=None)
    for name, value in facts_of(store, manifest).items():
        if name == "lineage":
            for key, fact in value.items():
                facts.add_row(key, ", ".join(fact) if isinstance(fact, tuple) else str(fact or "–"))
        elif name not in ("report", "report_state"):
            facts.add_row(name, ", ".join(value) if isinstance(value, list) else str(value))
    files = Listing("file", "bytes", "sha256")
    for file in manifest.files:
        files.add_row(file.path, f"{file.size:,}", file.sha256)
    layers = Listing("modules", "stored in")
    for layer in manifest.layers:
        layers.add_row(layer.pattern, layer.dtype)
    console.print(facts, files, *([layers] if manifest.layers else ()))
    print_reports(store, [manifest])


@app.command()
def compare(
    references: Annotated[
        list[str], typer.Argument(help="Two or more model references.", autocompletion=complete_reference)
    ],
    json: Json = False,
) -> None:
    """Versions side by side: facts and what was measured of each (`model evaluate` measures)."""
    store = repository()
    manifests = [store.resolve(reference) for reference in references]
    if json:
        print_json([facts_of(store, manifest) for manifest in manifests])
        return
    print_reports(store, manifests)


@app.command()
def verify(reference: Reference, json: Json = False) -> None:
    """Read every file of a version again and compare with its manifest."""
    store = repository()
    manifest = store.resolve(reference)
    store.verify(manifest)
    sentence = f"{manifest.reference}: {len(manifest.files)} files as published, digest {manifest.short_digest}"
    value = {"model": manifest.reference, "ok": True, "files": len(manifest.files), "digest": manifest.digest}
    answer(json, value, sentence)


@app.command()
def export(
    reference: Reference, target: Annotated[Path, typer.Argument(help="The tar file to write.")], json: Json = False
) -> None:
    """Write a version with its manifest and report to one file, which `model import` takes."""
    from models.repository.archive import export as write

    store = repository()
    manifest = store.resolve(reference)
    size = write(store, manifest, target)
    value = {"model": manifest.reference, "file": str(target), "bytes": size}
    answer(json, value, f"{manifest.reference} is in {target.name}, {size / 1e6:.1f} MB")


@app.command()
def delete(
    reference: Version,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Remove a version for good; refused while it has an alias, is on trial or is served."""
    target = ModelReference.parse(reference)
    if target.version is None:
        raise InvalidReference(f"{reference} is no exact version; name one, as in {target.name}:1")
    repository().delete(target.name, target.version, reason, who())
    tell("versions.delete", reference)
    answer(json, {"deleted": reference}, f"deleted {reference}")


@app.command()
def gc(
    keep: Annotated[
        int | None, typer.Option(min=0, help="Also delete all but the newest so many versions of each model.")
    ] = None,
    json: Json = False,
) -> None:
    """Give disk space back. Versions that have an alias, are on trial or in use stay, and all they were made from."""
    from models.imports.upkeep import collect

    collected = collect(repository(), keep, "gc", who())
    tell("versions.delete", *collected.versions)
    answer(
        json,
        asdict(collected),
        f"{len(collected.versions)} versions and {len(collected.leftovers)} leftovers removed, "
        f"{collected.bytes / 1e6:.1f} MB besides",
    )


@app.command()
def catalogue(json: Json = False) -> None:
    """Small models by short names, for `dosirak serve NAME`, and where each is fetched from."""
    columns = [Column(name, no_wrap=True) for name in ("name", "weights", "fetched", "license")]
    table = Listing(*columns, "from", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for entry in entries().values():
        place = Text.assemble(entry.place, "\n", (entry.about, "dim"))
        weights = f"{entry.parameters / 1e6:,.0f} M"
        table.add_row(entry.name, weights, needs.size(entry.bytes), entry.license, place)
    answer(json, [asdict(entry) for entry in entries().values()], table)


for verb in (promote, rollback, history, rollout):
    app.command()(verb)
