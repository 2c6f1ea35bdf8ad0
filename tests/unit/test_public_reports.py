"""The list of public reports: each has a test that there is, and no kind is missing."""

from __future__ import annotations

from tests.durations import is_there
from tests.public_reports import REPORTS

KINDS = {
    "tokenizing", "templates", "stops and ends", "streams", "logprobs", "structured output", "tools and reasoning",
    "seeds and ids", "truncation and cancelling", "caches and adapters", "imports", "metrics and registry", "security",
    "batches and embeddings", "dialects",
}  # fmt: skip


def test_every_report_has_its_test() -> None:
    found = [each for reports in REPORTS.values() for each in reports]
    assert REPORTS.keys() == KINDS and all(len(reports) >= 2 for reports in REPORTS.values())
    assert len({each.source for each in found}) == len(found) >= 40
    gone = [each for each in found if "::" not in each.proof or not is_there(each.proof)]
    assert gone == [], "name the test that shows it now, or take the report out"
