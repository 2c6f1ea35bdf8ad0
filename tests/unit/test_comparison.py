"""Perplexity, agreement and divergence by hand; and a comparison through real engines."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from models.demo.recall import Row
from models.imports.importing import import_source
from models.repository.repository import Repository
from models.weights.quantize import quantize
from service.errors import InvalidRequest
from service.evaluation import comparison as versions
from service.evaluation import recall
from service.evaluation.comparison import print_comparison
from service.evaluation.predictions import Predictions
from service.settings import Settings

DEMO = Path(__file__).parents[2] / "models" / "demo" / "weights"


def test_figures_by_hand() -> None:
    first, second = Predictions([-1.0, -3.0], [5, 6]), Predictions([-1.5, -2.5], [5, 7], [0.1, 0.3])
    assert first.perplexity == pytest.approx(math.exp(2.0))
    assert first.agreement(first) == 1.0 and second.agreement(first) == 0.5
    assert first.mean_kl == 0.0 and second.mean_kl == pytest.approx(0.2)


@pytest.mark.parametrize(
    "table",
    [
        versions._rendered({"q" * 90: Predictions([-1.0], [5])}),
        recall._rendered({"q" * 90: [Row("near", "test", 3, 4)]}),
    ],
    ids=["compare", "recall"],
)
def test_a_long_name_is_shown_whole(table: Table) -> None:
    console = Console(record=True, width=60)
    console.print(table)
    assert console.export_text().count("q") == 90


def comparison(data_dir: Path, *references: str, int8_kv: bool = False) -> str:
    console = Console(record=True, width=160)
    print_comparison(Settings(data_dir=data_dir, threads=1), references, 2, console, int8_kv)
    return console.export_text()


def test_a_version_agrees_with_itself_and_nearly_with_its_8_bit_child(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    quantize(repository, import_source(repository, str(DEMO), "demo"))
    shown = comparison(tmp_path, "demo:1", "demo:2", int8_kv=True).splitlines()
    parent, parent_kv, child, child_kv = (line for line in shown if "demo:" in line)
    assert "+0.00%" in parent and "100.00%" in parent and "0.00000 nats" in parent
    numbers = [line.split("│")[2:] for line in (parent, parent_kv, child, child_kv)]
    assert all(numbers.count(each) == 1 for each in numbers), "each moves something, however little"
    assert "int8 KV" in parent_kv and "int8 KV" in child_kv and "0.00000 nats" not in child


def test_only_versions_with_the_same_tokens_are_compared(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "data")
    other = shutil.copytree(DEMO, tmp_path / "other")
    template = other / "chat_template.jinja"
    template.write_text(template.read_text() + "!")
    import_source(repository, str(DEMO), "demo")
    import_source(repository, str(other), "other")
    with pytest.raises(InvalidRequest, match="does not split text"):
        comparison(tmp_path / "data", "demo:1", "other:1")
