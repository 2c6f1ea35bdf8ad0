"""`dosirak audit verify | export | cut` read the audit in the session database, and remove old rows of it. A running
server goes on meanwhile."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from rich.text import Text

from service.cli.settings import settings_or_exit
from service.cli.terminal import Json, answer, console, print_json, who
from service.errors import DosirakError, InvalidRequest, NotFound, Unavailable
from service.settings import PREFIX, Settings
from service.storage.audit.chain import CUT, Row, Walk, entry
from service.storage.database.unusable import UnusableDatabase

if TYPE_CHECKING:
    from service.storage.audit.trail import Trail

Result = TypeVar("Result")
PATIENCE_SECONDS = 30.0
MOST_DAYS = 36_500
app = typer.Typer(no_args_is_help=True, help="Who changed keys and models, and what was deleted: a chain of rows.")


class _Line(msgspec.Struct):
    """What a line of the log, or of an export, says of a row."""

    number: int
    hash: str
    event: str = "audit"


@app.command()
def verify(
    anchor: Annotated[
        list[str] | None, typer.Option(help="A row as you noted it: NUMBER:HASH. May be given several times.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="A server's log in JSON, or an export, to compare with.")] = None,
    json: Json = False,
) -> None:
    """Check that no row was changed, removed, added or moved; exit status 1 where one was. Without an anchor or a log
    it cannot show that somebody wrote the whole chain anew."""
    anchors = dict(_anchor(text) for text in anchor or ())
    walk = Walk(anchors | (_logged(log) if log else {}))
    walk.end(_run(lambda trail: trail.read(walk.take)))
    last = walk.last
    if json:
        named = {"number": last.number, "hash": last.hash} if last else None
        ok, cut = not walk.problems, walk.cut or None
        rows = {"rows": walk.rows, "compared": walk.compared, "cut": cut, "last": named}
        print_json({"ok": ok, "problems": walk.problems, **rows})
    else:
        for sentence in walk.problems:
            console.print(Text(sentence, "red"), soft_wrap=True)
        if walk.cut:
            console.print(Text(walk.cut), soft_wrap=True)
        shown = f"; the last is {last.number}:{last.hash}" if last else ""
        compared = f" ({walk.compared} compared with anchors)" if anchor or log else ""
        console.print(
            f"{walk.rows} rows{compared}, {len(walk.problems) or 'no'} problems{shown}", soft_wrap=True, highlight=False
        )
    if walk.problems:
        raise typer.Exit(1)


@app.command()
def export() -> None:
    """Print all rows as JSON lines, oldest first: a copy to keep elsewhere, which `verify --log` compares with."""

    def take(row: Row) -> None:
        sys.stdout.write(msgspec.json.encode(row.shown()).decode() + "\n")

    _run(lambda trail: trail.read(take))


@app.command()
def cut(
    older_than_days: Annotated[int, typer.Option(min=1, max=MOST_DAYS, help="Rows of the last so many days stay.")],
    json: Json = False,
) -> None:
    """Remove old rows. A new row says who did it, up to which row, and what its hash was."""
    until = int((datetime.now(UTC) - timedelta(days=older_than_days)).timestamp() * 1e6)
    actor = who()
    gone, told = _run(
        lambda trail: trail.cut(until, lambda last, detail: entry(CUT, "done", detail, subject=last, owner=actor))
    )
    note = f"; note this row, which says so: {told.number}:{told.hash}" if told else ""
    answer(json, {"removed": gone, "row": told and told._asdict()}, f"{gone} rows removed{note}")


def tell(action: str, *subjects: str, **detail: object) -> None:
    """Has the audit say what a command has done. Before a server has made the database there is no audit."""
    settings = settings_or_exit(console)
    who = {"owner": settings.who, "instance": "command"}
    told = [entry(action, "done", detail, subject=subject, **who) for subject in subjects]
    try:
        _run(lambda trail: trail.add(told))
    except NotFound:
        return
    except DosirakError as error:
        typer.echo(f"It is done; the audit has no row of it: {error}", err=True)


def _run(work: Callable[[Trail], Awaitable[Result]]) -> Result:
    """Opens the audit of these settings for `work`, in a database that this release's server has brought to its schema:
    an older server may use another one. Raises NotFound and Unavailable."""
    from service.storage.audit.trail import Trail
    from service.storage.database import migrating
    from service.storage.database.database import Database, sqlite_file

    settings = settings_or_exit(console)

    async def run() -> Result:
        database = Database(settings.session_database, PATIENCE_SECONDS)
        try:
            await migrating.require_head(database)
            return await work(Trail(database))
        finally:
            await database.close()

    try:
        _require_file(settings, sqlite_file(settings.session_database))
        return asyncio.run(run())
    except (UnusableDatabase, ValueError) as error:
        raise Unavailable(str(error)) from None


def _require_file(settings: Settings, file: Path | None) -> None:
    if file is not None and not file.exists():
        variable = "DATA_DIR" if settings.database_url is None else "DATABASE_URL"
        raise NotFound(f"There is no database at {file}: set {PREFIX}{variable} as the server's")


def _anchor(text: str) -> tuple[int, str]:
    number, _, hash = text.partition(":")
    if not number.isdecimal() or len(hash) != 64:
        raise InvalidRequest(f"--anchor {text[:80]} is no anchor: write NUMBER:HASH, as `verify` shows the last row")
    return int(number), hash


def _logged(path: Path) -> dict[int, str]:
    """Returns the rows that the lines of a file name. Raises InvalidRequest for a file that cannot be read."""
    found = dict[int, str]()
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidRequest(f"--log {path} cannot be read: {error.strerror}") from None
    for text in lines:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError:
            continue
        if line.event == "audit":
            found[line.number] = line.hash
    if not found:
        raise InvalidRequest(f"--log {path} has no line of the audit: give a server's log in JSON, or an export")
    return found
