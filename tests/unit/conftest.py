"""A session store over each kind of database, with a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.storage.sessions import SessionStore
from tests.migrated import begin_with_copies
from tests.sessions import KINDS, Clock, new_database

begin_with_copies()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database(request.param, tmp_path)


@pytest.fixture
async def store(database_url: str, clock: Clock) -> AsyncIterator[SessionStore]:
    opened = await SessionStore.open(database_url, clock=clock)
    yield opened
    await opened.close()
