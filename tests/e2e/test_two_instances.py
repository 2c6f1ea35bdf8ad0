"""Two real servers behind nginx, with one PostgreSQL and one store: whichever answers, the answer is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from loadtest.moves import GOAL_SECONDS, measure
from models.imports.starter import WEIGHTS
from tests.stores import KINDS
from tests.two_instances import Pair, missing, two_instances
from tests.waiting import block_until

pytestmark = [pytest.mark.skipif(missing() is not None, reason=str(missing())), pytest.mark.nightly]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_instances(tmp_path_factory.mktemp("pair"), request.param) as made:
        made.load_both_versions()
        yield made


def test_fifty_moves_under_load_fail_nothing_mix_nothing_and_are_seen_by_both(pair: Pair) -> None:
    seen = asyncio.run(measure(pair.url, [each.url for each in pair.instances], 50, 4))
    assert seen.wrong == [] and min(seen.answers.values()) > 20
    assert len(seen.seconds) == 100 and seen.p99 <= GOAL_SECONDS, sorted(seen.seconds)[-5:]


def test_a_version_in_use_by_the_other_cannot_be_deleted_and_409_names_it(pair: Pair) -> None:
    """Version 3 is published at the one, served by the other alone, and deleted when nobody uses it."""
    one, two = pair.instances
    with one.client() as first, two.client() as second:
        body = {"source": str(WEIGHTS), "version": "3", "evaluate": "none"}
        job = first.post("/v1/repository/models/demo/versions", json=body)
        assert job.status_code == 202, job.text
        block_until(lambda: "3" in versions(first), 120)
        block_until(lambda: "3" in versions(second), 10)
        answer = second.post("/generate", json={"model": "demo:3", "inputs": "hi", "parameters": {"max_new_tokens": 4}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "demo:3"
        holder = answer.headers["X-Instance"]
        refused = first.delete("/v1/repository/models/demo/versions/3")
        assert refused.status_code == 409 and f"in use by instance {holder}" in refused.text
        assert second.delete("/v1/deployments/demo:3").status_code == 202
        block_until(lambda: first.delete("/v1/repository/models/demo/versions/3").status_code in (200, 204), 30)
        block_until(lambda: "3" not in versions(second), 10)


def versions(client: httpx.Client) -> list[str]:
    listed = client.get("/v1/repository/models/demo").raise_for_status().json()
    return [each["version"] for each in listed["versions"]]


def test_one_connection_of_a_server_listens(pair: Pair) -> None:
    """The process of `dosirak serve` that waits for its server has none."""
    listening = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{pair.database_name}' AND query LIKE 'LISTEN%'"
    block_until(lambda: pair.database.sql(listening) == str(len(pair.instances)), 10)
