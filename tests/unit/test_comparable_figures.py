"""The store UI shows of several versions what compares: the same figures as
`models.repository.report.on_shared_texts`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from models.manifest import Manifest
from models.repository.report import Report, TextPart, TextSet, on_shared_texts
from models.repository.repository import Repository
from tests.reports import beside, report
from tests.versions import publish

LIB = Path(__file__).parents[2] / "service" / "ui" / "static" / "lib"
WORDS = "export const t = key => key, number = String, percent = String;"
ASK = """import {comparable, lines, QUALITY} from './report.mjs';
import {readFileSync} from 'node:fs';
const shown = comparable(JSON.parse(readFileSync(0, 'utf-8')));
console.log(JSON.stringify(shown.map(({apart, report}) => ({
  apart: Boolean(apart), perplexity: report?.perplexity ?? null,
  keys: lines(QUALITY, report).map(line => line.key), ranged: Boolean(report?.intervals?.perplexity)}))));
"""
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node here")


@pytest.fixture
def version(tmp_path: Path) -> Manifest:
    return publish(Repository(tmp_path / "data"), "one")


def shown(directory: Path, reports: list[Report | None], production: int | None = None) -> list[dict[str, Any]]:
    """What the store's screens make of versions with these reports."""
    (directory / "words.mjs").write_text(WORDS)
    (directory / "report.mjs").write_text((LIB / "report.js").read_text().replace("./words.js", "./words.mjs"))
    (directory / "ask.mjs").write_text(ASK)
    rows = [
        {"aliases": ["production"] if at == production else [], "report": each and json.loads(each.to_json())}
        for at, each in enumerate(reports)
    ]
    command = ["node", str(directory / "ask.mjs")]
    done = subprocess.run(command, input=json.dumps(rows), capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def test_perplexity_is_over_the_texts_that_all_have(tmp_path: Path, version: Manifest) -> None:
    full, quick = (report(version, None, losses=losses) for losses in ((60.0, 120.0, 180.0), (66.0, 114.0)))
    other = msgspec.structs.replace(full, texts=TextSet("mine", "f" * 64, 60, (TextPart("other", 60, 30.0),)))
    old = report(version, None)
    cases: list[list[Report | None]] = [[full, None, quick, other], [other, full], [old, old, full], [None]]
    for reports in cases:
        found = shown(tmp_path, reports)
        want = on_shared_texts(reports)
        assert [each["perplexity"] for each in found] == [value and pytest.approx(value) for value in want]
        assert [each["apart"] for each in found] == [
            each is not None and value is None for each, value in zip(reports, want, strict=True)
        ]


def test_what_production_points_to_leads(tmp_path: Path, version: Manifest) -> None:
    full = report(version, None, losses=(60.0, 120.0))
    other = msgspec.structs.replace(full, texts=TextSet("mine", "f" * 64, 60, (TextPart("other", 60, 30.0),)))
    assert [each["apart"] for each in shown(tmp_path, [other, full], production=1)] == [True, False]


def test_figures_against_different_parents_do_not_compare(tmp_path: Path, version: Manifest) -> None:
    mine = report(version, beside(version), losses=(60.0,))
    theirs = msgspec.structs.replace(mine, compared=msgspec.structs.replace(beside(version), digest="9" * 64))
    alone = msgspec.structs.replace(mine, compared=None)
    assert all("kl" in each["keys"] for each in shown(tmp_path, [mine, mine]))
    assert ["kl" in each["keys"] for each in shown(tmp_path, [mine, alone])] == [True, False]
    assert not any("kl" in each["keys"] for each in shown(tmp_path, [mine, theirs]))
