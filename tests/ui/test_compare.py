"""The screen that compares two versions, in a real browser."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.ui.browser import Window, cells, needs_browser

pytestmark = needs_browser


def test_a_comparison_shows_what_differs_and_the_rest_on_demand(shown: Window) -> None:
    page = shown.open("models/demo/compare?a=1&b=2")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare demo:1 and demo:2")
    facts, files = page.get_by_role("table", name="Facts"), page.get_by_role("table", name="Files")
    expect(facts.get_by_role("columnheader")).to_have_text(["Fact", "demo:1", "demo:2"])
    expect(facts.get_by_role("row", name=re.compile("^Precision"))).to_contain_text("bf16int8")
    expect(facts.get_by_role("row", name=re.compile("^Vocabulary"))).to_have_count(0)
    assert cells(files) == [["model.safetensors", "differs"]]
    speed = page.get_by_role("table", name="Speed")
    expect(speed.get_by_role("columnheader")).to_have_text(["Measure", "demo:1", "demo:2"])
    perplexity = page.get_by_role("table", name="Quality").get_by_role("row", name=re.compile("^Perplexity –"))
    expect(perplexity).to_contain_text(re.compile(r"\d\.\d{4}\d\.\d{4} – \d\.\d{4}"))  # the value and its interval
    page.get_by_role("checkbox", name="Only differences").uncheck()
    expect(facts.get_by_role("row", name=re.compile("^Vocabulary"))).to_be_visible()
    expect(files.get_by_role("row", name="config.json same", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Ask both")).to_have_attribute(
        "href", re.compile(r"side-by-side\?a=demo%3A1&b=demo%3A2$")
    )
