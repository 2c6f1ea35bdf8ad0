"""`dosirak keys` against a running server: the secret is printed once, and works."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service import cli
from service.cli.terminal import console
from service.errors import DosirakError
from tests.api.conftest import KEY, Serve
from tests.fake_service import over_http


async def run(*words: str) -> str:
    def typed() -> str:
        result = CliRunner().invoke(cli.app, ["keys", *words])
        if isinstance(result.exception, DosirakError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return await asyncio.to_thread(typed)


async def test_a_key_is_made_shown_rotated_and_deleted(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOSIRAK_ADMIN_KEY", KEY)
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(console, "width", 200)
    database = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"  # others' is one for all tests
    async with serve(admin_key=KEY, database_url=database) as world, over_http(world) as url:
        facts = ("--scope", "generate", "--scope", "sessions", "--model", "demo", "--tokens-per-day", "900")
        made = await run("create", "shop", *facts, "--url", url)
        first, secret, _ = made.splitlines()
        id = first.split()[0]

        async def passes(key: str) -> bool:
            headers = {"Authorization": f"Bearer {key}"}
            return (await world.client.get("/v1/models", headers=headers)).status_code == 200

        assert await passes(secret)
        for shown in (await run("list", "--url", url), await run("show", id, "--url", url)):
            assert "tokens_per_day 900" in shown and "generate sessions" in shown and secret not in shown
        assert json.loads(await run("list", "--url", url, "--json"))[0]["models"] == ["demo"]
        rotated = json.loads(await run("rotate", id, "--url", url, "--json"))
        assert await passes(rotated["key"]) and not await passes(secret)
        assert "deleted" in await run("delete", id, "--url", url)
        assert not await passes(rotated["key"])
        made = json.loads(await run("create", "[/x] \x1b[31mshop", "--url", url, "--json"))
        shown = await run("list", "--url", url)
        assert made["id"] in shown and "[/x] [31mshop" in shown and "\x1b" not in shown
        await run("delete", made["id"], "--url", url)
        with pytest.raises(DosirakError, match="There is no key"):
            await run("show", id, "--url", url)
        with pytest.raises(DosirakError, match="`scopes"):
            await run("create", "shop", "--scope", "everything", "--url", url)
