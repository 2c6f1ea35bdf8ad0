"""A probe sees what is wrong: the right forward passes in every family and precision, whatever rounds, and wrong ones
are refused.

The real model of the catalogue is probed as well, nightly: random weights hide how far roundings grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec import structs

from models.imports.importing import import_source
from models.repository.repository import Repository
from models.weights.loading import DTYPES, load_model
from models.weights.quantize import quantize
from service.engine.runner.forwards.blueprint import Blueprint, LibraryWeights, Outline, assemble
from service.engine.runner.forwards.decoder import FusedDecoder
from service.engine.runner.forwards.foreign import PackedForward, PerSequenceForward, pin_rope
from service.engine.runner.forwards.forward import CannotServe, Forward
from service.engine.runner.forwards.native_decoder import NativeDecoder
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.linear import Int8Linear
from service.engine.runner.loading import building
from service.engine.runner.loading.families import outline_of
from service.engine.runner.loading.lesson import observe_lesson, with_noises
from service.engine.runner.loading.probe import Reference, observe, verify
from service.engine.runner.native.library import library
from tests.effort import usual
from tests.golden.conftest import Load
from tests.golden.test_architectures import OURS
from tests.golden.tiny import GROUPED, Loaded, save_int8, save_random
from tests.wrong_forwards import wrong_blueprints, wrong_outlines

CPU = torch.device("cpu")
WINDOW = 400
PRECISIONS = ("fp32", "bf16", "int8")
FAMILIES = usual(OURS, "llama", "qwen2", "gemma2", "gemma3_text", "gpt_oss", "gpt_neox")
UNSEEN_IN_8_BITS = {"logits' softcap", "eps 100 times larger"}
"""No logit of a small random model comes near its softcap; an epsilon moves some models less than one other code."""

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native kernels")


@dataclass(frozen=True)
class Probed:
    """A library's model with its reference."""

    model: transformers.PreTrainedModel
    outline: Outline
    reference: Reference
    dtype: torch.dtype
    positions: int
    attention: str

    @classmethod
    def of(cls, directory: Path, precision: str, positions: int) -> Probed:
        dtype = DTYPES["fp32" if precision == "fp32" else "bf16"]
        model = load_model(directory, precision, dtype, CPU, Int8Linear)
        pin_rope(model, positions)
        found, outline = observe(model, CPU), outline_of(model)
        lesson = observe_lesson(model, outline.shapes, found.devices, precision, positions)
        assert lesson is not None
        attention = model.config._attn_implementation
        return cls(model, outline, replace(found, lesson=lesson), dtype, positions, attention)

    def cache(self, dtype: torch.dtype | None = None) -> KVCache:
        return KVCache(self.outline.shapes, 4, 16, dtype or self.dtype, CPU)

    def blueprint(self, outline: Outline | None = None) -> Blueprint:
        return assemble(outline or self.outline, LibraryWeights(self.model), self.positions)

    def native(self, whole: Blueprint, dtype: torch.dtype | None = None) -> None:
        """Verifies the native decoder of a blueprint. Raises CannotServe."""
        cache = KVCache(whole.outline.shapes, 4, 16, dtype or self.dtype, CPU)
        self.verify(NativeDecoder(whole, cache), cache)

    def verify(self, forward: Forward, cache: KVCache) -> None:
        verify(forward, self.reference, cache, 0.0, self.positions)

    def wrong(self) -> Iterator[tuple[str, Blueprint]]:
        for name, outline in wrong_outlines(self.outline).items():
            yield name, self.blueprint(outline)
        yield from wrong_blueprints(self.blueprint()).items()


@pytest.fixture(scope="module")
def probed(load: Load, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Probed]:
    known: dict[tuple[str, str], Probed] = {}

    def get(name: str, precision: str) -> Probed:
        if (name, precision) not in known:
            directory = Path(load(name, precision).config.model_dir)
            known[name, precision] = Probed.of(directory, precision, WINDOW)
        return known[name, precision]

    return get


def _passed(probed: Probed, unseen: set[str]) -> list[str]:
    """The wrong forwards that are not refused, with a cache of the forward's own dtype and of 8 bits."""
    passed = []
    for name, whole in probed.wrong():
        for dtype in (None, torch.int8):
            try:
                probed.native(whole, dtype)
                passed.append(name)
            except CannotServe:
                continue
    return sorted(set(passed) - unseen)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_wrong_forwards_are_refused(probed: Callable[[str, str], Probed], name: str, precision: str) -> None:
    assert _passed(probed(name, precision), UNSEEN_IN_8_BITS if precision == "int8" else set()) == []


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_right_forward_is_not(probed: Callable[[str, str], Probed], name: str, precision: str) -> None:
    known = probed(name, precision)
    for dtype in (None, torch.int8):
        known.native(known.blueprint(), dtype)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nor_are_the_other_ways(load: Load, precision: str) -> None:
    """Their rows are in bf16 between two operations, so the library's own noise counts."""
    known = Probed.of(Path(load("llama", precision).config.model_dir), precision, WINDOW)
    lesson = known.reference.lesson
    assert lesson is not None
    noisy = replace(known.reference, lesson=with_noises(lesson, known.model, known.cache(), WINDOW))
    ways: tuple[Callable[[], Any], ...] = (
        lambda: FusedDecoder(known.blueprint()),
        lambda: PackedForward(known.model),
        lambda: PerSequenceForward(known.model, known.attention),
    )
    wrong = FusedDecoder(known.blueprint(wrong_outlines(known.outline)["linear rope scaling"]))
    for way in ways:
        forward = way()
        for dtype in (known.dtype, torch.int8):
            verify(forward, noisy, known.cache(dtype), 0.0, WINDOW)
    with pytest.raises(CannotServe, match="layer 0 differs"):
        verify(wrong, noisy, known.cache(), 0.0, WINDOW)


def test_a_softcap_of_attention(tmp_path: Path) -> None:
    """Scores of random weights hardly reach a cap of 50."""
    config = transformers.Gemma2Config(**GROUPED, head_dim=16, sliding_window=24, attn_logit_softcapping=2.0)
    known = Probed.of(save_random(config, tmp_path, seed=1), "fp32", WINDOW)
    known.native(known.blueprint())
    without = [structs.replace(layer, softcap=None) for layer in known.outline.layers]
    with pytest.raises(CannotServe, match="differs from the library's"):
        known.native(known.blueprint(structs.replace(known.outline, layers=tuple(without))))


def test_outlier_columns_loosen_no_bound(load: Load, tmp_path: Path) -> None:
    """Rows with a few large numbers leave few codes to the others, and every rounding moves those."""
    source = transformers.AutoModelForCausalLM.from_pretrained(load("llama", "fp32").config.model_dir)
    with torch.no_grad():
        for layer in source.model.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight[:3] *= 25
    source.save_pretrained(tmp_path / "planted")
    known = Probed.of(save_int8(tmp_path / "planted", tmp_path / "int8"), "int8", WINDOW)
    known.native(known.blueprint())
    with pytest.raises(CannotServe, match="differs"):
        known.native(known.blueprint(wrong_outlines(known.outline)["rope theta ten times larger"]))


def test_a_whole_that_is_not_its_parts(probed: Callable[[str, str], Probed], monkeypatch: pytest.MonkeyPatch) -> None:
    known = probed("llama", "int8")
    right = NativeDecoder.forward

    def wrong(self: NativeDecoder, step: Any) -> torch.Tensor:
        return right(self, step).roll(1, -1)

    monkeypatch.setattr(NativeDecoder, "forward", wrong)
    with pytest.raises(CannotServe, match="its whole differs"):
        known.native(known.blueprint())


def test_a_wrong_outline_does_not_serve(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither our decoders nor a record of them; the library does, and says why."""
    directory = Path(load("llama", "bf16").config.model_dir)

    def wrong(model: transformers.PreTrainedModel) -> Outline:
        return wrong_outlines(outline_of(model))["attention scale 10 % off"]

    monkeypatch.setattr(building, "outline_of", wrong)
    loaded = Loaded.of(directory, "bf16")
    assert loaded.info.forward == "transformers"
    slow = loaded.info.slow_path
    assert slow is not None and slow.step_seconds > slow.weights_seconds
    assert any("layer 0 differs from the library's" in reason for reason in slow.reasons)


def test_a_slow_path_has_its_cost_and_a_fast_one_none(load: Load) -> None:
    assert load("llama", "int8").info.slow_path is None
    slow = load("gpt2", "bf16").info.slow_path
    assert slow is not None and slow.slowdown > 1
    assert slow.reasons[0] == "the fused forward does not know gpt2"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory of the catalogue's first model by precision."""
    repository = Repository(tmp_path_factory.mktemp("real"))
    try:
        manifest = import_source(repository, "smollm2", "smollm2", precision="bf16")
    except (ValueError, OSError) as error:
        pytest.skip(f"the catalogue's model cannot be fetched: {error}")
    plain = repository.path(manifest)
    return {"bf16": plain, "fp32": plain, "int8": repository.path(quantize(repository, manifest))}


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_real_model(real: dict[str, Path], precision: str) -> None:
    known = Probed.of(real[precision], precision, 8192)
    for dtype in (None, torch.int8):
        known.native(known.blueprint(), dtype)
    assert _passed(known, set()) == []
