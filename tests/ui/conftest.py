"""One real server and one browser for all tests of the UI; each test has a page of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from loadtest.bench.running import free_port
from tests.e2e.server import Server, python, running
from tests.published import with_demo
from tests.ui.browser import Window, browser, window

KEY = "correct horse battery staple"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`dosirak serve` with the demo model."""
    data = with_demo(tmp_path_factory, "ui")
    with running(python("-m", "service.cli", "serve"), data, data.with_name("serve.log"), free_port()) as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Ends with each file: while it is open, its event loop keeps asyncio tests of the same process from running."""
    with browser() as started:
        yield started


@pytest.fixture
def shown(served: Server, chromium: Browser) -> Iterator[Window]:
    """A window of a person with an English browser. The test fails where the page complained."""
    with window(chromium, served.url) as opened:
        yield opened
        assert not opened.complaints, opened.complaints


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key, which loads no model before somebody asks for one."""
    data = with_demo(tmp_path_factory, "keyed")
    command, log = python("-m", "service.cli", "serve"), data.with_name("serve.log")
    with running(command, data, log, free_port(), DOSIRAK_ADMIN_KEY=KEY, DOSIRAK_PRELOAD="false") as server:
        yield server


@pytest.fixture
def client(served: Server) -> Iterator[httpx.Client]:
    """Another person, who asks the same server over HTTP."""
    with served.client() as opened:
        yield opened
