"""Shared records that were never read here: what is refused then, and what goes on. None takes versions for absent."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from models.errors import Unreachable
from models.imports.upkeep import collect
from models.repository.disk.journal import History
from models.repository.disk.records import FileRecords
from models.repository.repository import Repository
from service import cli
from tests.api.reading import error
from tests.fake_service import publish as publish_served
from tests.fake_service import serving
from tests.reports import report
from tests.versions import publish


class Away(FileRecords):
    """Records of instances, whose database does not answer."""

    shared = True

    def history(self, name: str) -> History:
        raise Unreachable("The shared records cannot be had now")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A version with a report, and records that are away."""
    repository = Repository(tmp_path)
    manifest = publish(repository, "one")
    repository.put_report(manifest, report(manifest))
    repository.records = Away(repository.layout)
    return repository


def test_versions_are_not_taken_for_absent(repository: Repository) -> None:
    for read in (repository.models, lambda: repository.versions("demo"), lambda: repository.resolve("demo")):
        with pytest.raises(Unreachable):
            read()
    fresh = Repository(repository.layout.data_dir, records=Away(repository.layout))
    repository.layout.publications("demo").unlink()  # as of an earlier release
    with pytest.raises(Unreachable):
        fresh.models()


@pytest.mark.parametrize("keep", [None, 0])
def test_nothing_is_collected(repository: Repository, keep: int | None) -> None:
    with pytest.raises(Unreachable):
        collect(repository, keep)
    alone = Repository(repository.layout.data_dir)
    (manifest,) = alone.versions("demo")
    assert alone.report(manifest) == report(manifest)


@pytest.mark.parametrize("verb", ["list", "gc"])
def test_a_command_says_so(repository: Repository, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(repository.layout.data_dir))
    monkeypatch.setattr("service.cli.models.repository", lambda: repository)
    result = CliRunner().invoke(cli.app, ["model", verb])
    assert isinstance(result.exception, Unreachable) and result.output == ""


async def test_a_server_s_metrics_go_on_and_its_lists_say_so(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    publish_served(repository)
    repository.promote("demo", "production", "1", "first")
    async with serving(tmp_path) as world:
        world.deployments.repository.records = Away(repository.layout)
        assert "dosirak_alias_info{" not in (await world.client.get("/metrics")).raise_for_status().text
        for path in ("/v1/repository/models", "/v1/repository/models/demo"):
            assert "cannot be had now" in error(await world.client.get(path), 503, "unavailable")["error"]
