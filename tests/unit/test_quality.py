"""Perplexity, agreement and shift by hand; and a comparison through real engines."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from models.importing import import_source
from models.quantize import quantize
from models.repository import Repository
from service.engine.request import TokenLogprobs
from service.errors import InvalidRequest
from service.quality import Predictions, print_comparison
from service.settings import Settings

DEMO = Path(__file__).parents[2] / "models" / "demo" / "weights"


def told(*pairs: tuple[float, int]) -> Predictions:
    return Predictions.of([TokenLogprobs(logprob, ((likeliest, -0.1),)) for logprob, likeliest in pairs])


def test_figures_by_hand() -> None:
    first, second = told((-1.0, 5), (-3.0, 6)), told((-1.5, 5), (-2.5, 7))
    assert first.perplexity == pytest.approx(math.exp(2.0))
    assert first.agreement(first) == 1.0 and second.agreement(first) == 0.5
    assert second.shift(first) == pytest.approx(0.5)


def comparison(data_dir: Path, *references: str, int8_kv: bool = False) -> str:
    console = Console(record=True, width=160)
    print_comparison(Settings(data_dir=data_dir, threads=1), references, 2, console, int8_kv)
    return console.export_text()


def test_a_version_agrees_with_itself_and_nearly_with_its_8_bit_child(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    quantize(repository, import_source(repository, str(DEMO), "demo"))
    shown = comparison(tmp_path, "demo:1", "demo:2", int8_kv=True).splitlines()
    parent, parent_kv, child, child_kv = (line for line in shown if "demo:" in line)
    assert "+0.00%" in parent and "100.00%" in parent and "0.0000 nats" in parent
    assert all("0.0000 nats" not in line for line in (parent_kv, child, child_kv))
    assert "int8 KV" in parent_kv and "int8 KV" in child_kv and child_kv != child


def test_only_versions_with_the_same_tokens_are_compared(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "data")
    other = shutil.copytree(DEMO, tmp_path / "other")
    template = other / "chat_template.jinja"
    template.write_text(template.read_text() + "!")
    import_source(repository, str(DEMO), "demo")
    import_source(repository, str(other), "other")
    with pytest.raises(InvalidRequest, match="does not split text"):
        comparison(tmp_path / "data", "demo:1", "other:1")
