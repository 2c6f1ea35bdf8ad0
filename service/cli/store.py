"""`dosirak store init | push | bind | verify | status` make a store, move there what a data directory has alone, and
show what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from models.errors import Conflict
from models.repository import moving
from models.repository.repository import Repository
from models.repository.store import binding
from models.repository.store.shared_store import SharedStore
from service.cli.foreign import Listing, plain
from service.cli.settings import settings_or_exit
from service.cli.terminal import Json, answer, console, print_json
from service.settings import Settings
from service.storage import records

app = typer.Typer(no_args_is_help=True, help="Versions that several instances share (DOSIRAK_STORE_URL).")


@app.command()
def init(
    url: Annotated[
        str | None, typer.Argument(help="file:///path or s3://bucket/prefix; DOSIRAK_STORE_URL where it is left out.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a store of an empty directory or prefix, and check that it keeps conditional writes."""
    place = url or _url(settings_or_exit(console))
    store = SharedStore.init(place)
    value = {"url": place, "id": store.identity}
    answer(json, value, f"{place} is the store {store.identity}", soft_wrap=True)


@app.command()
def push(json: Json = False) -> None:
    """Move what the data directory has alone: versions with their reports to the store, aliases with their history and
    rollouts to PostgreSQL. Exit status 1 where a model's records could not be moved."""
    settings = settings_or_exit(console)
    if not settings.shares_records:
        _url(settings)
    pushed, moved = records.push(settings)
    if json:
        print_json({"pushed": pushed, **asdict(moved)})
    else:
        if settings.store_url is not None:
            console.print(plain(_listed("versions pushed", pushed)), soft_wrap=True)
        if settings.shares_records:
            journals = [f"{name} ({count} entries)" for name, count in moved.entries.items()]
            console.print(plain(_listed("journals moved", journals)), soft_wrap=True)
            console.print(plain(_listed("rollouts moved", moved.rollouts)), soft_wrap=True)
        for sentence in moved.kept:
            console.print(plain(sentence, "red"), soft_wrap=True)
    if moved.kept:
        raise typer.Exit(1)


@app.command()
def bind(json: Json = False) -> None:
    """Make the store that of the database of these settings, where its former one is gone for good. End every instance
    of the former one first."""
    settings = settings_or_exit(console)
    store, database = SharedStore.open(_url(settings)), records.database_id(settings)
    binding.bind(store, database)
    bound = "no shared database" if database is None else f"database {database}"
    answer(json, {"database": database}, f"{store.remote.url} is the store of {bound}", soft_wrap=True)


@app.command()
def verify(json: Json = False) -> None:
    """Read every byte of the store's versions again; exit status 1 where one is not what was published."""
    wrong = moving.verify(SharedStore.open(_url(settings_or_exit(console))))
    if json:
        print_json({"ok": not wrong, "wrong": wrong})
    else:
        for sentence in wrong:
            console.print(plain(sentence, "red"), soft_wrap=True)
        console.print(f"{len(wrong)} problems" if wrong else "all versions are as published")
    if wrong:
        raise typer.Exit(1)


@app.command()
def status(json: Json = False) -> None:
    """What the store holds, and how much of it lies in the data directory."""
    settings = settings_or_exit(console)
    store = SharedStore.open(_url(settings))
    contents, database = moving.contents(store), binding.database_of(store)
    mirror = moving.mirror_of(Repository(settings.data_dir, store=store))
    cached, alone = mirror.cache.size(), mirror.not_stored()
    if json:
        facts = {"url": settings.store_url, "database": database, **asdict(contents)}
        print_json({**facts, "cached_bytes": cached, "not_pushed": alone})
        return
    table = Listing("what", "how much", title=plain(store.remote.url))
    table.add_row("database", database or "none is shared")
    table.add_row("versions", ", ".join(f"{name}: {count}" for name, count in contents.models.items()) or "none")
    table.add_row("reports, deleted versions", f"{contents.reports}, {contents.deleted}")
    table.add_row("blobs", f"{contents.blobs}, {contents.bytes / 1e6:.1f} MB; {contents.unused} wait to be pruned")
    limit = f" of {settings.store_cache_bytes / 1e6:.1f}" if settings.store_cache_bytes else ""
    table.add_row("weights in the data directory", f"{cached / 1e6:.1f}{limit} MB")
    table.add_row("in the data directory alone", ", ".join(alone) or "none")
    console.print(table)


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}{': ' if names else ''}{', '.join(names)}"


def _url(settings: Settings) -> str:
    if settings.store_url is None:
        raise Conflict("No store is set: set DOSIRAK_STORE_URL to file:///path or s3://bucket/prefix")
    return settings.store_url
