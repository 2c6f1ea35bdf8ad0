"""`dosirak store init | push | verify | status` make a store, move versions of a data directory there, and show it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from models.errors import Conflict
from models.opening import open_unpushed
from models.store import moving
from models.store.shared_store import SharedStore
from service.cli.settings import settings_or_exit
from service.cli.terminal import Json, console, print_json
from service.settings import Settings

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
    if json:
        print_json({"url": place, "id": store.identity})
        return
    console.print(f"{place} is the store {store.identity}", soft_wrap=True)


@app.command()
def push(json: Json = False) -> None:
    """Move the versions of the data directory to the store, with their reports."""
    settings = settings_or_exit(console)
    _url(settings)
    pushed = moving.push(open_unpushed(settings.data_dir, settings.store))
    if json:
        print_json({"pushed": pushed})
        return
    console.print(f"{len(pushed)} versions pushed{': ' if pushed else ''}{', '.join(pushed)}", soft_wrap=True)


@app.command()
def verify(json: Json = False) -> None:
    """Read every byte of the store's versions again; exit status 1 where one is not what was published."""
    wrong = moving.verify(SharedStore.open(_url(settings_or_exit(console))))
    if json:
        print_json({"ok": not wrong, "wrong": wrong})
    else:
        for sentence in wrong:
            console.print(Text(sentence, "red"), soft_wrap=True)
        console.print(f"{len(wrong)} problems" if wrong else "all versions are as published")
    if wrong:
        raise typer.Exit(1)


@app.command()
def status(json: Json = False) -> None:
    """What the store holds, and how much of it lies in the data directory."""
    settings = settings_or_exit(console)
    found = moving.contents(SharedStore.open(_url(settings)))
    mirror = moving.mirror_of(open_unpushed(settings.data_dir, settings.store))
    cached, alone = mirror.cache.size(), mirror.not_stored()
    if json:
        print_json({"url": settings.store_url, **asdict(found), "cached_bytes": cached, "not_pushed": alone})
        return
    table = Table("what", "how much", title=settings.store_url)
    table.add_row("versions", ", ".join(f"{name}: {count}" for name, count in found.models.items()) or "none")
    table.add_row("reports, deleted versions", f"{found.reports}, {found.deleted}")
    table.add_row("blobs", f"{found.blobs}, {found.bytes / 1e6:.1f} MB; {found.unused} wait to be pruned")
    limit = f" of {settings.store_cache_bytes / 1e6:.1f}" if settings.store_cache_bytes else ""
    table.add_row("weights in the data directory", f"{cached / 1e6:.1f}{limit} MB")
    table.add_row("in the data directory alone", ", ".join(alone) or "none")
    console.print(table)


def _url(settings: Settings) -> str:
    if settings.store_url is None:
        raise Conflict("No store is set: set DOSIRAK_STORE_URL to file:///path or s3://bucket/prefix")
    return settings.store_url
