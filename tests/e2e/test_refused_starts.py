"""`dosirak serve` with a store or a database that it must not use ends at once: one sentence says what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from loadtest.bench.running import free_port
from models.repository.store.shared_store import SharedStore
from tests import postgres
from tests.e2e.server import ROOT, python
from tests.sessions import needs_postgresql
from tests.stores import s3_environment

pytestmark = pytest.mark.nightly


def refusal(directory: Path, **settings: str) -> str:
    """Returns what a start says that is refused."""
    variables = {"DOSIRAK_DATA_DIR": str(directory), "DOSIRAK_PORT": str(free_port()), **settings}
    ended = subprocess.run(
        python("-m", "service.cli", "serve"),
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    said = (ended.stdout + ended.stderr).strip()
    assert ended.returncode == 1 and "Traceback" not in said, said
    return said


def test_a_place_that_is_no_store_of_ours(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    url = f"file://{tmp_path}/other"
    said = refusal(tmp_path / "data", DOSIRAK_STORE_URL=url)
    assert said == f"error: {url} is no store yet, for it has no dosirak.json: make one with `dosirak store init`"
    (tmp_path / "other" / "dosirak.json").write_text('{"name": "of somebody else"}')
    said = refusal(tmp_path / "data", DOSIRAK_STORE_URL=url)
    assert said == f"error: {url} has a dosirak.json that is not ours: choose another prefix or directory"


def test_a_bucket_that_does_not_answer(tmp_path: Path) -> None:
    nobody = s3_environment(f"http://127.0.0.1:{free_port()}")
    said = refusal(tmp_path / "data", DOSIRAK_STORE_URL="s3://versions/x", **nobody)
    assert said.startswith("error: The store does not take or give dosirak.json: there is no connection; see that ")
    assert said.endswith("the credentials are right and the store answers, then try again") and "\n" not in said


def test_a_database_that_does_not_answer(tmp_path: Path) -> None:
    url, port = f"file://{tmp_path}/store", free_port()
    SharedStore.init(url)
    database = f"postgresql+asyncpg://127.0.0.1:{port}/nobody"
    said, logged = refusal(tmp_path / "data", DOSIRAK_STORE_URL=url, DOSIRAK_DATABASE_URL=database).splitlines()
    assert "records_unreachable" in logged and str(port) in logged, "the database's own words are in the log"
    assert said.startswith("error: The shared records cannot be had now, for the database of DOSIRAK_DATABASE_URL ")


@needs_postgresql
def test_a_store_of_another_database(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    SharedStore.init(url)
    SharedStore.open(url).remote.put("database.json", b'{"id": "first"}')
    for settings, here in (
        ({"DOSIRAK_DATABASE_URL": postgres.server().new_database()}, "DOSIRAK_DATABASE_URL is database "),
        ({}, "no shared database is set here"),
    ):
        said = refusal(tmp_path / "data", DOSIRAK_STORE_URL=url, **settings)
        told = [line for line in said.splitlines() if "records_moved" not in line]
        assert len(told) == 1 and told[0].startswith(f"error: {url} is the store of database first, and {here}")
        assert told[0].endswith("end every instance of it and run `dosirak store bind`")
