"""The dtype of each module, by the files' headers, folded into a few lines that still say it of every module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InvalidSource
from models.imports.importing import import_source
from models.manifest import Layer
from models.repository.layers import fold, module_dtypes
from models.repository.repository import Repository
from models.weights.quantize import quantize
from tests.checkpoints import save_llama
from tests.versions import FACTS

PARTS = st.one_of(st.sampled_from(["layers", "q_proj", "head", "07", "x1", "²", ""]), st.integers(0, 12).map(str))
NAMES = st.lists(PARTS, min_size=1, max_size=5).map(".".join).filter(lambda name: name != "")
NUMBER = "(0|[1-9][0-9]*)"
RUN = f"{NUMBER}(-{NUMBER})?"
DTYPES = st.sampled_from(["I8", "BF16", "I8+BF16"])


def told(layers: tuple[Layer, ...], name: str) -> list[str]:
    """The dtypes of all patterns that `name` fits, read as the documentation says."""
    return [layer.dtype for layer in layers if _fits(layer.pattern.split("."), name.split("."))]


def _fits(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) == len(parts) and all(map(_stands_for, pattern, parts))


def _stands_for(told: str, part: str) -> bool:
    if told == part or not re.fullmatch(NUMBER, part):
        return told == part
    runs = [run.split("-") for run in told.split(",")] if re.fullmatch(f"{RUN}(,{RUN})*", told) else []
    return told == "*" or any(int(run[0]) <= int(part) <= int(run[-1]) for run in runs)


@given(st.dictionaries(NAMES, DTYPES, max_size=40))
def test_folding_loses_nothing(dtypes: dict[str, str]) -> None:
    layers = fold(dtypes)
    assert list(layers) == sorted(set(layers))
    for name, dtype in dtypes.items():
        assert told(layers, name) == [dtype]
    for layer in layers:
        assert any(told((layer,), name) for name in dtypes), f"{layer} is of nothing"


def test_layers_that_agree_share_a_line() -> None:
    alike = {f"model.layers.{at}.{name}": "I8" for at in range(22) for name in ("q_proj", "up_proj")}
    assert fold(alike | {"lm_head": "BF16"}) == (
        Layer("lm_head", "BF16"),
        Layer("model.layers.*.q_proj", "I8"),
        Layer("model.layers.*.up_proj", "I8"),
    )


def test_numbers_are_listed_where_layers_differ() -> None:
    mixed = {f"h.{at}.mlp": "I8+BF16" if at in (0, 3, 4, 5, 11) else "I8" for at in range(12)}
    assert fold(mixed) == (Layer("h.0,3-5,11.mlp", "I8+BF16"), Layer("h.1-2,6-10.mlp", "I8"))
    experts = {f"h.{at}.experts.{expert}": "I8" if at else "BF16" for at in range(3) for expert in range(4)}
    assert fold(experts) == (Layer("h.0.experts.*", "BF16"), Layer("h.1-2.experts.*", "I8"))


def test_what_counts_as_a_module() -> None:
    linear = {"weight": "I8", "weight_scale": "F32", "bias": "BF16", "outlier_columns": "I32", "outlier_weight": "BF16"}
    tensors = {f"q.{name}": dtype for name, dtype in linear.items()} | {
        "norm.weight": "F32",
        "experts.gate_up_proj": "BF16",
        "a": "F16",
        "a.weight": "I8",
        "weight": "F32",
    }
    assert module_dtypes(tensors) == {
        "q": "I8+BF16",
        "norm": "F32",
        "experts.gate_up_proj": "BF16",
        "a": "F16",
        "a.weight": "I8",
        "weight": "F32",
    }


@pytest.mark.parametrize("precision", ["int8", "llm-int8"])
def test_published_with_every_version(tmp_path: Path, precision: str) -> None:
    repository = Repository(tmp_path / "data")
    parent = import_source(repository, str(save_llama(tmp_path / "source")), "demo")
    assert {layer.dtype for layer in parent.layers} == {"BF16"}
    assert Layer("model.layers.0.self_attn.q_proj", "BF16") in parent.layers
    assert repository.get("demo", parent.version).layers == parent.layers
    small = quantize(repository, parent, precision, calibrate=lambda directory, window: [[1, 2, 3]])
    stored = {layer.pattern: layer.dtype for layer in small.layers}
    assert stored["model.layers.0.self_attn.q_proj"].startswith("I8") and stored["lm_head"].startswith("I8")
    assert stored["model.norm"] == "BF16" and stored.get("model.embed_tokens", "BF16") == "BF16"


def test_a_file_without_a_sound_header_is_not_published(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "data")
    with repository.stage() as staged:
        (staged / "model.safetensors").write_text("no header")
        with pytest.raises(InvalidSource, match=r"model\.safetensors"):
            repository.publish(staged, FACTS, "demo")
    assert repository.versions("demo") == []
