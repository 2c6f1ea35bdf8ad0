"""The screen of a rollout in a real browser; each test has an alias of its own."""

from __future__ import annotations

import random
import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from models.repository.rollouts import Rollout, RolloutLimits
from service.deployments.rollouts import LEAST_TIMES, Observed, broken_limit
from tests.ui.browser import Window, cells, needs_browser

pytestmark = needs_browser
ALIASES = "/v1/repository/models/demo/aliases"


@pytest.mark.nightly
def test_a_rollout_is_started_watched_reweighed_and_promoted(shown: Window, client: httpx.Client) -> None:
    client.put(f"{ALIASES}/trial", json={"version": "2"})
    page = shown.open("models/demo/aliases/trial/rollout")
    expect(page.get_by_role("heading", level=1)).to_have_text("Rollout of demo@trial")
    expect(page.get_by_role("status")).to_contain_text("Nothing was rolled out yet")
    expect(page.get_by_role("table")).to_have_count(0)
    expect(page.get_by_role("combobox", name="Candidate").get_by_role("option")).to_have_text(["demo:1"])
    expect(page.get_by_role("button", name="Abort")).to_have_count(0)
    page.get_by_role("slider", name="Weight").fill("0")
    page.get_by_role("spinbutton", name="TTFT p95 ratio at most").fill("1000")
    page.get_by_role("spinbutton", name="From requests").fill("3")
    page.get_by_role("textbox", name="Reason").fill("went well for a day")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status")).to_contain_text("demo:1 answers 0% of the conversations, demo:2 the rest")
    observed, guards = page.get_by_role("table", name="Observed"), page.get_by_role("table", name="Guards")
    expect(guards.get_by_role("columnheader")).to_have_text(["Guard", "Observed", "Limit", "State"])
    assert [[row[0], row[2], row[3]] for row in cells(guards)] == [
        ["Error rate", "≤ 5.0%", "waiting"],
        ["TTFT p95 ratio", "≤ 1,000.00×", "waiting"],
    ]
    _answers(client, "trial", "base", LEAST_TIMES)
    expect(observed.get_by_role("row").nth(1)).to_contain_text(re.compile(rf"^demo:2{LEAST_TIMES}0.0%[\d.]+ ms$"))
    page.get_by_role("slider", name="Weight").fill("100")
    page.get_by_role("button", name="Change weight").click()
    expect(page.get_by_role("status")).to_contain_text("demo:1 answers 100%")
    _answers(client, "trial", "candidate", LEAST_TIMES)
    expect(observed.get_by_role("row").nth(2)).to_contain_text(re.compile(r"^demo:1\d+0.0%"))
    expect(guards.get_by_role("row").nth(1)).to_contain_text("ok")
    expect(guards.get_by_role("row").nth(2)).to_contain_text("ok")
    found = client.get(f"{ALIASES}/trial/rollout").json()["rollout"]["observed"]
    for row, side in enumerate(("base", "candidate"), 1):
        expect(observed.get_by_role("row").nth(row).get_by_role("cell").nth(1)).to_have_text(
            str(found[side]["requests"])
        )
    page.get_by_role("button", name="Promote demo:1").click()
    expect(page.get_by_role("status")).to_contain_text("demo:1 was promoted. No rollout runs; demo:1 answers every")
    earlier = page.get_by_role("table", name="Earlier rollouts")
    expect(earlier.get_by_role("columnheader")).to_have_text(["Candidate", "State", "Reason"])
    assert cells(earlier) == [["demo:1", "promoted", "went well for a day"]]
    expect(observed).to_have_count(0)
    expect(page.get_by_role("combobox", name="Candidate").get_by_role("option")).to_have_text(["demo:2"])
    assert client.get(f"{ALIASES}/trial").json()["version"] == "1"
    shown.forget("404")


def test_a_rollout_is_aborted_and_no_other_is_promoted_by_an_old_page(shown: Window, client: httpx.Client) -> None:
    client.put(f"{ALIASES}/short", json={"version": "2"})
    client.put(f"{ALIASES}/short/rollout", json={"candidate": "1", "weight": 30, "shadow": True})
    page = shown.open("models/demo/aliases/short/rollout")
    expect(page.get_by_role("slider", name="Weight")).to_have_value("30")
    expect(page.get_by_role("checkbox", name="Shadow")).to_be_checked()
    expect(page.get_by_text("No answer was compared yet")).to_be_visible()
    _hide(page)  # a page in the background asks nothing
    client.delete(f"{ALIASES}/short/rollout", params={"reason": "by another"})
    client.put(f"{ALIASES}/short/rollout", json={"candidate": "1", "weight": 5})
    page.get_by_role("button", name="Promote demo:1").click()
    expect(page.get_by_role("alert")).to_contain_text("no longer the one shown here")
    assert client.get(f"{ALIASES}/short").json()["version"] == "2"
    shown.open("models/demo/aliases/short/rollout")
    page.get_by_role("textbox", name="Reason").fill("enough seen")
    page.get_by_role("button", name="Abort").click()
    expect(page.get_by_role("status")).to_contain_text("The rollout of demo:1 was aborted; demo:2 answers every")
    earlier = page.get_by_role("table", name="Earlier rollouts")
    expect(earlier.get_by_role("row")).to_have_count(3)
    assert cells(earlier) == [["demo:1", "aborted", "enough seen"], ["demo:1", "aborted", "by another"]]
    expect(page.get_by_role("button", name="Start")).to_be_focused()


def test_a_broken_guard_ends_the_rollout_before_ones_eyes(shown: Window, client: httpx.Client) -> None:
    client.put(f"{ALIASES}/slow", json={"version": "2"})
    page = shown.open("models/demo/aliases/slow/rollout")
    guards = {"ttft_p95_ratio": 0.001, "min_requests": 1}
    body = {"candidate": "1", "weight": 0, "guards": guards}
    client.put(f"{ALIASES}/slow/rollout", json=body)
    expect(page.get_by_role("status")).to_contain_text("demo:1 answers 0%")  # begun by another, seen here
    _answers(client, "slow", "base", LEAST_TIMES)
    client.put(f"{ALIASES}/slow/rollout", json={**body, "weight": 100})
    _answers(client, "slow", "candidate", LEAST_TIMES)
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"demo:1 was taken back by itself: TTFT p95 [\d.]+x"))
    row = page.get_by_role("table", name="Guards").get_by_role("row").nth(2)
    expect(row).to_contain_text(re.compile(r"^TTFT p95 ratio[\d.]+×≤ 0.00×broken$"))
    expect(page.get_by_role("table", name="Earlier rollouts").get_by_role("row").nth(1)).to_contain_text("rolled back")
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    shown.forget("404")


def test_guards_are_judged_as_the_server_judges_them(shown: Window) -> None:
    chance, cases, reasons = random.Random(3), [], []
    limits = RolloutLimits(0.2, 2.0, 4)
    rollout = Rollout("demo", "x", "1", "2", 50, True, False, limits, "")
    for _ in range(400):
        base, candidate = Observed(), Observed()
        for side in (base, candidate):
            times = chance.choice([(None, 0.1), (0.1, 0.2), (0.2, 0.5)])
            for _ in range(chance.choice([0, 58, 120]) + chance.randrange(7)):
                side.note(chance.random() < 0.15, chance.choice(times))
        observed = {"base": base.describe(), "candidate": candidate.describe()}
        cases.append({"guards": {"error_rate": 0.2, "ttft_p95_ratio": 2.0, "min_requests": 4}, "observed": observed})
        reasons.append(broken_limit(rollout, base, candidate))
    told = shown.open("models/demo").evaluate(
        """async ([cases, reasons]) => {
            const {brokenBy, guardsOf} = await import(new URL('../static/x/lib/guards.js', location.href).href);
            const broken = each => guardsOf(each).find(one => one.state === 'broken')?.guard ?? null;
            return cases.map((each, at) => [broken(each), brokenBy(reasons[at])?.guard ?? null]);
        }""",
        [cases, reasons],
    )
    named = [{"e": "error_rate", "T": "ttft_p95_ratio"}.get(reason[:1]) for reason in reasons]
    assert set(named) == {None, "error_rate", "ttft_p95_ratio"}
    assert told == [[each, each] for each in named]


def _answers(client: httpx.Client, alias: str, side: str, count: int) -> None:
    """Asks the alias until the rollout counts so many answers of a version, or has ended. A candidate loads first."""
    for turn in range(600):
        body = {"model": f"demo@{alias}", "messages": [{"role": "user", "content": f"Hello {turn}"}], "max_tokens": 2}
        client.post("/v1/chat/completions", json=body).raise_for_status()
        rollout = client.get(f"{ALIASES}/{alias}/rollout").json()["rollout"]
        if rollout is None or rollout["observed"][side]["requests"] >= count:
            return
    raise AssertionError(rollout)


def _hide(page: Page) -> None:
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.wait_for_timeout(200)
