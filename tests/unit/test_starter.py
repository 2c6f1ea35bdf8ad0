"""The demo model of a fresh installation: two versions, and a report whose figures anybody can measure again."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from models.imports.starter import REPORT, WEIGHTS, main, missing_of, publish_demo
from models.repository.gate import Limits
from models.repository.report import Report
from models.repository.repository import Repository
from service.evaluation.evaluate import evaluate
from service.evaluation.planning import EFFORTS
from service.settings import Settings

SPEED_SECONDS = 0.5
"""Speed is of a host, and no test asserts it."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    made = Repository(tmp_path_factory.mktemp("data"))
    publish_demo(made, WEIGHTS)
    return made


def shipped(repository: Repository) -> Report:
    report = repository.report(repository.get("demo", "2"))
    assert report is not None, f"{REPORT.name} is not of the shipped weights: measure them again (recipe/README.md)"
    return report


def test_the_int8_version_comes_with_its_report(repository: Repository) -> None:
    report, parent = shipped(repository), repository.get("demo", "1")
    assert report.compared is not None and report.compared.digest == parent.digest
    assert repository.report(parent) is None
    assert repository.broken_limits(repository.get("demo", "2"), "production", Limits(measured=True)) == ()


@pytest.mark.nightly
def test_the_figures_that_ship_are_those_of_a_fresh_evaluation(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels for other instruction sets add in another order: the last digits may differ, and one answer in fifty."""
    known = shipped(repository)
    whole = replace(EFFORTS[known.effort], speed_seconds=SPEED_SECONDS, seconds=math.inf)
    monkeypatch.setitem(EFFORTS, known.effort, whole)  # a busy machine would measure less
    found = evaluate(
        Settings(data_dir=repository.layout.data_dir), repository, repository.get("demo", "2"), known.effort
    )
    assert found.texts.sha256 == known.texts.sha256 and found.compared is not None and known.compared is not None
    assert [part.loss for part in found.texts.parts] == pytest.approx(
        [part.loss for part in known.texts.parts], rel=0.01, abs=0.1
    )
    assert found.perplexity == pytest.approx(known.perplexity, rel=2e-4)
    assert found.compared.perplexity_change == pytest.approx(known.compared.perplexity_change, abs=4e-4)
    assert found.compared.top1_agreement == pytest.approx(known.compared.top1_agreement, abs=0.004)
    assert found.compared.kl == pytest.approx(known.compared.kl, rel=0.5)
    assert [(each.cell, each.asked) for each in found.recall] == [(each.cell, each.asked) for each in known.recall]
    assert found.recall_share == pytest.approx(known.recall_share, abs=0.02)


def test_what_is_there_is_not_replaced(repository: Repository) -> None:
    small, report = repository.get("demo", "2"), shipped(repository)
    mine = Report.from_json(report.to_json().replace(b'"effort": "quick"', b'"effort": "full"'), small)
    repository.put_report(small, mine)
    publish_demo(repository, WEIGHTS)
    assert repository.report(small) == mine
    repository.put_report(small, report)


def test_what_a_bento_carries_comes_first_and_keeps_its_digest(repository: Repository, tmp_path: Path) -> None:
    small = repository.get("demo", "2")
    carried = {"demo:2": repository.path(small)}
    made = Repository(tmp_path)
    assert missing_of(made, carried) == carried
    main(str(tmp_path), f"demo:2={repository.path(small)}")
    assert missing_of(made, carried) == {}
    assert made.get("demo", "2").digest == small.digest and made.get("demo", "2").lineage == small.lineage
    assert [each.version for each in made.versions("demo")] == ["2", "1"], "the demo model is made whole"
    assert made.aliases("demo") == {"production": "2"} and made.report(small) is not None
    main(str(tmp_path), f"demo:2={repository.path(small)}")


def test_with_a_model_of_its_own_nobody_gets_the_demo_model(tmp_path: Path) -> None:
    made = Repository(tmp_path)
    main(str(tmp_path), f"chat:v3={WEIGHTS}")
    assert made.models() == ["chat"] and made.resolve("chat").version == "v3"


def test_other_weights_have_no_report(tmp_path: Path) -> None:
    other = shutil.copytree(WEIGHTS, tmp_path / "weights")
    (other / "generation_config.json").write_text("{}")
    made = Repository(tmp_path / "data")
    _, small = publish_demo(made, other)
    assert made.report(small) is None
