"""This script takes the pictures of the UI for README and docs from a running service with the demo model:
`make screenshots`. It makes a chat, a rollout and some load first, so that every screen has something to show.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.e2e.server import free_port, python, running
from tests.ui.browser import PROGRAM, browser, window

FOLDER: Final = Path(__file__).parent
WIDE: Final = {"width": 1280, "height": 860}
TALL: Final = {"width": 1280, "height": 1240}
SAID: Final = (
    "안녕하세요",
    "제 이름은 김하린이에요.",
    "땅콩 알레르기가 있어요.",
    "12시 30분에 갈게요.",
    "제 이름이 뭐예요?",
)
LOOKS: Final = {"light": ("light", "en-US"), "dark": ("dark", "en-US"), "ko": ("light", "ko-KR")}


def take() -> None:
    """Writes ui-{screen}-{look}.png into docs/images."""
    if PROGRAM is None:
        raise SystemExit("no Chromium here: apt-get install chromium-headless-shell fonts-nanum")
    with tempfile.TemporaryDirectory() as folder:
        data, log = Path(folder) / "data", Path(folder) / "serve.log"
        with (
            running(python("-m", "service.cli", "serve", "demo"), data, log, free_port()) as server,
            browser() as started,
            server.client() as client,
        ):
            _pictures(started, server.url, client, _prepared(client))


def _prepared(client: httpx.Client) -> str:
    """A chat past its window, and a rollout with traffic; returns the session."""
    session: str = client.post("/v1/sessions", json={"metadata": {"title": "점심 주문"}}).json()["id"]
    for text in SAID:
        body = {
            "messages": [{"role": "user", "content": text}],
            "session_id": session,
            "parameters": {"temperature": 0},
        }
        client.post("/generate", json={**body, "context": {"policy": "window"}}).raise_for_status()
    alias = "/v1/repository/models/demo/aliases/tried"
    client.put(alias, json={"version": "1", "reason": "the first that chats"}).raise_for_status()
    rollout = {"candidate": "2", "weight": 30, "sticky": False, "guards": {"min_requests": 10}}
    client.put(f"{alias}/rollout", json=rollout).raise_for_status()
    for turn in range(40):
        client.post(
            "/generate", json={"inputs": f"{turn} 도시락", "model": "demo@tried", "parameters": {"max_new_tokens": 8}}
        )
    return session


def _pictures(started: Browser, base: str, client: httpx.Client, session: str) -> None:
    for look, (scheme, locale) in LOOKS.items():
        with window(started, base, viewport=WIDE, color_scheme=scheme, locale=locale, device_scale_factor=1) as shown:
            _save(shown.open("models/demo/versions/2"), "store", look)
            _save(shown.open("models/demo/aliases/tried/rollout"), "rollout", look)
            page = shown.open(f"playground?session={session}")
            page.set_viewport_size(TALL)
            _budgeted(page)
            _save(page, "inspector", look)
            page.set_viewport_size(WIDE)
            page.goto(f"{base}/ui/live")
            _under_load(client, lambda page=page: page.wait_for_timeout(8000))
            _save(page, "live", look)


def _budgeted(page: Page) -> None:
    """A budget that the chat does not fit, so that the inspector has something to tell."""
    page.locator("input[name=budget]").fill("72")
    page.locator("textarea").fill("얼마예요?")
    page.wait_for_timeout(1500)


def _under_load(client: httpx.Client, work: Callable[[], None]) -> None:
    """Does `work` while a few clients ask."""
    ending = threading.Event()

    def ask() -> None:
        while not ending.is_set():
            client.post(
                "/generate", json={"inputs": "안녕하세요", "parameters": {"max_new_tokens": 64, "temperature": 1.0}}
            )
            time.sleep(0.05)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    work()
    ending.set()
    for thread in threads:
        thread.join()


def _save(page: Page, name: str, look: str) -> None:
    page.screenshot(path=FOLDER / f"ui-{name}-{look}.png")
    print(f"ui-{name}-{look}.png", flush=True)


if __name__ == "__main__":
    take()
