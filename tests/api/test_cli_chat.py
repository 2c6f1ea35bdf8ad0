"""`dosirak chat` with the real app: a chat that outgrows its window, as somebody at a terminal sees it."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from service.cli import chat
from service.cli.client import Client
from tests.api.conftest import KEY, Serve
from tests.fake_service import WINDOW, World, over_http


async def talk(url: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, session: str | None = None) -> str:
    waiting = iter([*lines, "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(waiting))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    shown = io.StringIO()
    client = Client.of(url, {"Authorization": f"Bearer {KEY}"})
    console = Console(file=shown, width=120, force_terminal=True, color_system=None)
    await asyncio.to_thread(chat.run, client, session, {}, {"max_new_tokens": 14}, console, False)
    return shown.getvalue()


async def test_a_chat_past_its_window(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(database_url=url, admin_key=KEY) as world, over_http(world) as address:
        said = [f"hello {turn}, hello world" for turn in range(24)]
        lines = (await talk(address, [*said, "/session", "/history 100"], monkeypatch)).splitlines()
        [session] = [line for line in lines if line.startswith("s_")]
        stored = await messages(world, session)
        contents = {each["id"]: each["content"].strip() for each in stored}
        receipts = [each["context"] for each in stored if each["role"] == "assistant"]
        assert [each["content"] for each in stored[::2]] == said

        bars = [line for line in lines if line.startswith("[")]
        assert len(bars) == 24 and {len(bar) for bar in bars} == {80}
        used = [line.split(" of ")[0].split(" · ")[-1] for line in lines if f" of {WINDOW} · " in line]
        assert used == [str(receipt["used"]) for receipt in receipts]
        wanted = [
            f'left out: {len(gone)} messages, {receipt["dropped_tokens"]} tokens, up to "{contents[gone[-1]]}"'
            for receipt in receipts
            if (gone := receipt["dropped"])
        ]
        assert len(wanted) > 10
        assert [line.split('"')[:2] for line in lines if line.startswith("left out: ")] == [
            line.split('"')[:2] for line in wanted
        ]
        news = sum("from now on" in line for line in lines)
        assert news == len({len(receipt["dropped"]) for receipt in receipts}) - 2, "as often as the cut moved"
        gone = [line for line in lines if line[4:].startswith(("  you      left out", "  dosirak  left out"))]
        assert len(gone) == len(receipts[-1]["dropped"])

        again = await talk(address, ["/pin 1", "/regenerate"], monkeypatch, session)
        assert f"{session}: 48 messages, the last 4:" in again
        assert (await messages(world, session))[-1]["context"]["kept"][:2] == [each["id"] for each in stored[:2]]


async def messages(world: World, session: str) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {KEY}"}
    response = await world.client.get(f"/v1/sessions/{session}/messages?limit=100", headers=headers)
    return list(response.json()["data"])


async def test_a_refusal_of_the_server_is_a_sentence(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(database_url=url, admin_key=KEY) as world, over_http(world) as address:
        shown = await talk(address, ["hello " * 300, "/policy never", "/preview " + "hello " * 300, "hi"], monkeypatch)
        assert " ".join(shown.split()).count("the window has 512: shorten the input by") == 2
        assert shown.count(f"window {WINDOW} · needed_tokens ") == 2
        assert "`policy` must be 'refuse', 'window', 'middle', 'summarise' or 'retrieve'" in shown
        assert "\ndosirak  안녕" in shown
