"""The screen of an alias in a real browser; what a test promotes under production it rolls back."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from models.errors import Conflict
from models.repository.repository import Repository
from models.weights.quantize import quantize
from tests.e2e.server import Server
from tests.ui.browser import Window, cells, needs_browser
from tests.versions import publish
from tests.waiting import block_until

pytestmark = needs_browser
ALIASES = "/v1/repository/models/demo/aliases"


def states(api: httpx.Client) -> dict[str, str]:
    """The state of each version in memory."""
    return {each["model"]: each["state"] for each in api.get("/v1/deployments").json()["data"]}


@pytest.fixture
def worse(served: Server) -> Iterator[None]:
    """The gate of production refuses demo:9: by its report it predicts far worse than demo:2, on the same texts."""
    repository = Repository(served.log.parent / "data")
    manifest = quantize(repository, repository.get("demo", "1"), "int8-weight", version="9")
    good = repository.report(repository.get("demo", "2"))
    assert good is not None
    parts = tuple(replace(part, loss=part.loss * 3 + 9) for part in good.texts.parts)
    texts = replace(good.texts, parts=parts)
    bad = replace(good, digest=manifest.digest, texts=texts, perplexity=good.perplexity**3, compared=None)
    repository.put_report(manifest, bad)
    yield
    with served.client() as api:  # it may be ready after the alias has left it, and then it stays
        block_until(lambda: "loading" not in states(api).values(), 60)
        if manifest.reference in states(api):
            api.delete(f"/v1/deployments/{manifest.reference}")
        block_until(lambda: manifest.reference not in states(api), 60)
    repository.delete("demo", manifest.version)


def test_an_alias_is_made_promoted_and_rolled_back(shown: Window, client: httpx.Client) -> None:
    page = shown.open("models/demo/aliases/made")
    expect(page.get_by_role("heading", level=1)).to_have_text("demo@made")
    status, history = page.get_by_role("status"), page.get_by_role("table", name="History")
    expect(status).to_contain_text("points to no version. Choose one and promote it")
    expect(history).to_have_count(0)
    _promote(page, "demo:1", "the first")
    expect(status).to_have_text("demo@made points to demo:1 now.")
    expect(page.get_by_role("button", name=re.compile("Roll back"))).to_have_count(0)
    _promote(page, "demo:2", "a third smaller")
    expect(history.get_by_role("columnheader")).to_have_text(["Time", "Change", "Version", "From", "By", "Reason"])
    expect(status).to_have_text("demo@made points to demo:2 now.")
    assert [row[1:] for row in cells(history)] == [
        ["promoted", "demo:2", "demo:1", "anonymous", "a third smaller"],
        ["promoted", "demo:1", "–", "anonymous", "the first"],
    ]
    page.get_by_role("textbox", name="Reason").fill("not as good")
    page.get_by_role("button", name="Roll back to demo:1").click()
    expect(status).to_have_text("demo@made points to demo:1 again.")
    expect(page.get_by_role("button", name=re.compile("Roll back"))).to_have_count(0)
    last = client.get(f"{ALIASES}/made").json()["change"]
    assert (last["action"], last["version"], last["reason"]) == ("rollback", "1", "not as good")
    _promote(page, "demo:1", "")
    expect(status).to_contain_text("already")


def test_an_old_page_overwrites_nothing_and_loads_again(shown: Window, client: httpx.Client) -> None:
    client.put(f"{ALIASES}/old", json={"version": "2"})
    page = shown.open("models/demo/aliases/old")
    expect(page.get_by_role("status")).to_contain_text("demo@old points to demo:2")
    client.put(f"{ALIASES}/old", json={"version": "1", "reason": "another person"})
    _promote(page, "demo:2", "I know better")
    expect(page.get_by_role("alert")).to_contain_text(re.compile("read it again.*412 · request", re.DOTALL))
    assert client.get(f"{ALIASES}/old").json()["version"] == "1"
    expect(page.get_by_role("status")).to_be_empty()
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_role("status")).to_contain_text("demo@old points to demo:1")
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.get_by_role("textbox", name="Reason")).to_have_value("I know better")
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_role("status")).to_have_text("demo@old points to demo:2 now.")
    shown.forget("412")


@pytest.mark.usefixtures("worse")
def test_the_gate_refuses_by_the_apis_sentence_and_is_overridden_with_a_reason(shown: Window) -> None:
    page = shown.open("models/demo/aliases/production")
    page.get_by_role("checkbox", name="Override the gate").check()
    _promote(page, "demo:9", "")
    expect(page.get_by_text(re.compile("^refuses perplexity"))).to_be_visible()
    broken = re.compile(r"demo:9 breaks the gate's limits: perplexity .* at most .2.*request", re.DOTALL)
    expect(page.get_by_role("alert")).to_contain_text(broken)
    expect(page.get_by_role("combobox", name="Version")).to_have_value("9")
    expect(page.get_by_role("checkbox", name="Override the gate")).to_be_checked()
    page.get_by_role("textbox", name="Reason").fill("the int8 kernels are broken here")
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_role("status")).to_have_text("demo@production points to demo:9 now.")
    newest = page.get_by_role("table", name="History").get_by_role("row").nth(1)
    expect(newest).to_contain_text(
        re.compile("the int8 kernels are broken here.*gate overridden perplexity", re.DOTALL)
    )
    expect(page.get_by_role("checkbox", name="Override the gate")).not_to_be_checked()
    page.get_by_role("button", name="Roll back to demo:2").click()
    expect(page.get_by_role("status")).to_have_text("demo@production points to demo:2 again.")
    shown.forget("409")


def test_the_target_of_a_rollback_is_the_repositorys(shown: Window, tmp_path: Path) -> None:
    """Over histories by chance, with removals, rollbacks of rollbacks and deleted versions."""
    chance, cases = random.Random(7), []
    for walk in range(8):
        repository = Repository(tmp_path / str(walk))
        for content in "abcde":
            publish(repository, content)
        for _ in range(30):
            cases += _step(repository, chance)
    assert {expected for _, _, expected in cases} == {None, "1", "2", "3", "4", "5"}
    told = shown.open("models/demo").evaluate(
        """async cases => {
            const {rollbackTarget} = await import(new URL('../static/x/lib/changes.js', location.href).href);
            const target = ([changes, there]) => rollbackTarget(changes, version => there.includes(version));
            return Promise.all(cases.map(target));
        }""",
        [case[:2] for case in cases],
    )
    assert told == [expected for _, _, expected in cases]


def _step(repository: Repository, chance: random.Random) -> list[tuple[list[dict[str, Any]], list[str], str | None]]:
    """One change by chance; for a rollback, the history before it, the versions that are there, and where it led."""
    before = [{**asdict(entry), "overridden": []} for entry in repository.history("demo", "x")]
    there = [manifest.version for manifest in repository.versions("demo")]
    kind = chance.choices(["promote", "rollback", "remove", "delete"], [5, 4, 1, 0.4])[0]
    present = repository.aliases("demo").get("x")
    if kind == "rollback":
        try:
            return [(before, there, repository.rollback("demo", "x", "").version)]
        except Conflict:
            return [(before, there, None)]
    if kind == "promote":
        repository.promote("demo", "x", chance.choice(there), "")
    elif kind == "remove" and present:
        repository.remove_alias("demo", "x", "")
    elif kind == "delete" and len(there) > 2:
        repository.delete("demo", chance.choice([version for version in there if version != present]))
    return []


def _promote(page: Page, version: str, reason: str) -> None:
    page.get_by_role("combobox", name="Version").select_option(version)
    page.get_by_role("textbox", name="Reason").fill(reason)
    page.get_by_role("button", name="Promote").click()
