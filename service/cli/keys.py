"""`dosirak keys create | list | show | rotate | delete` manage the keys of a running server. A key's secret is printed
once, by the command that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from service.cli.foreign import Listing, plain
from service.cli.settings import settings_or_exit
from service.cli.terminal import Json, answer, console, print_json

if TYPE_CHECKING:
    from service.cli.client import Client

app = typer.Typer(no_args_is_help=True, help="Keys of a running server, which DOSIRAK_ADMIN_KEY lets you manage.")
Url = Annotated[str | None, typer.Option(help="The server; where DOSIRAK_HOST and DOSIRAK_PORT say, if unset.")]
Id = Annotated[str, typer.Argument(help="The key's id, key_…; not its secret.")]
Most = Annotated[int | None, typer.Option()]
PATH = "/v1/keys"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What people call the key.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="generate (usual), sessions, models:read, … Repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Only these answer: NAME or NAME:VERSION. Repeatable.")
    ] = None,
    expires_at: Annotated[str | None, typer.Option(help="As 2030-01-31T00:00:00Z; never, if unset.")] = None,
    requests_per_minute: Most = None,
    tokens_per_minute: Most = None,
    requests_per_day: Most = None,
    tokens_per_day: Most = None,
    concurrent: Annotated[int | None, typer.Option(help="Requests at a time.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Make a key, and print it this once."""
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "requests_per_day": requests_per_day,
        "tokens_per_day": tokens_per_day,
        "concurrent": concurrent,
    }
    facts = {"name": name, "scopes": scope or ["generate"], "models": model, "expires_at": expires_at}
    body = _present({**facts, "limits": _present(limits) or None})
    _tell(_client(url).ask("POST", PATH, dict[str, Any], body), json)


@app.command("list")
def list_keys(url: Url = None, json: Json = False) -> None:
    """All keys with their scopes, models, limits and ends."""
    found = _client(url).ask("GET", PATH, dict[str, Any])["data"]
    table = Listing("id", "name", "scopes", "models", "limits", "ends")
    for key in found:
        table.add_row(*(_shown(key)[each] for each in ("id", "name", "scopes", "models", "limits", "expires_at")))
    answer(json, found, table)


@app.command()
def show(id: Id, url: Url = None, json: Json = False) -> None:
    """One key."""
    found = _client(url).ask("GET", _path(id), dict[str, Any])
    facts = Listing("", "", show_header=False, box=None)
    for name, text in _shown(found).items():
        facts.add_row(name, text)
    answer(json, found, facts)


@app.command()
def rotate(
    id: Id,
    grace_seconds: Annotated[int, typer.Option(help="How long the secret of before is good, too.")] = 0,
    url: Url = None,
    json: Json = False,
) -> None:
    """Give a key another secret, and print it this once. What its bearers stored stays theirs."""
    _tell(_client(url).ask("POST", _path(id, "rotate"), dict[str, Any], {"grace_seconds": grace_seconds}), json)


@app.command()
def delete(id: Id, url: Url = None, json: Json = False) -> None:
    """Revoke a key: every server refuses it within a second."""
    _client(url).send("DELETE", _path(id))
    answer(json, {"deleted": id}, f"{id} is deleted")


def _client(url: str | None) -> Client:
    from service.cli.client import Client
    from service.cli.serve.checks import address, authorization

    settings = settings_or_exit(console)
    return Client.of(url or address(settings), authorization(settings))


def _path(*parts: str) -> str:
    return "/".join([PATH, *(quote(part, safe="") for part in parts)])


def _present(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value is not None}


def _tell(key: Mapping[str, Any], json: bool) -> None:
    """Prints a key with its secret."""
    if json:
        print_json(key)
        return
    console.print(plain(f"{key['id']}  {key['name']}  {' '.join(key['scopes'])}"))
    console.print(plain(key["key"]), soft_wrap=True)
    console.print("Keep it now: nothing shows it again.", style="dim")


def _shown(key: Mapping[str, Any]) -> dict[str, str]:
    limits = _present(key["limits"] or {})
    return {
        "id": key["id"],
        "name": key["name"],
        "scopes": " ".join(key["scopes"]),
        "models": " ".join(key["models"] or ["all"]),
        "limits": ", ".join(f"{name} {most}" for name, most in limits.items()) or "none",
        "expires_at": key["expires_at"] or "never",
        "created_at": key["created_at"],
    }
