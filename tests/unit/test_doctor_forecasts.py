"""The doctor's forecasts: the formula by hand, sizes of published models, and memory as admission counts it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from models.imports.starter import WEIGHTS, publish_demo
from models.repository.repository import Repository
from models.weights.shapes import TYPICAL, Shape
from service.cli.doctor.diagnosis import demo_shape, expected, forecast
from service.cli.doctor.speed import Speed
from service.deployments.engine_handle import SharedEngines
from service.deployments.needs import Files, Needs, kv_bytes_per_token, needs_of
from service.engine.kv_cache.kv_size import FREE_MEMORY_SHARE
from service.evaluation.host.machine import Memory
from service.evaluation.host.measured import EngineTimes, Measured
from service.settings import Settings
from tests.hosts import GB, HOST, MEASURED

SMALL = Shape("small", 2, 4, 2, 1, 2, 8, 10, 64)
BY_HAND = Measured(
    "", "", 1, "", "avx2", "", False, 1e-6,
    {"int8": {1: 1e-6, 8: 4e-6, 256: 1e-5}, "fp32": {256: 2e-6}},
    EngineTimes({1: 0.5, 8: 1.0}, 0.25, {1: 0.0, 8: 1e-3, 256: 1e-4}), 0.0,
)  # fmt: skip
"""1,000 bytes a second; 1,000, 4,000 and 10,000 operations a second for 1, 8 and 256 rows."""


def test_the_formula_by_hand() -> None:
    """Layers: 4 · (8 + 4) + 3 · 4 · 8 = 144 weights each; the head 40, so 328 in all. A row has 4 · 4 + 8 + 4 + 3 · 8 =
    52 elements in a layer; a token 2 · 2 · 2 values of two bytes = 16 bytes of keys and values."""
    assert (SMALL.layer_weights, SMALL.linear_weights, SMALL.row_values) == (144, 328, 52)
    speed = Speed(BY_HAND, SMALL, "int8", 16.0, step_tokens=4)
    engine, layers = 1.0, 2 * (0.25 + 1e-3 * 8 * 52)
    products, read, attention = 2 * 8 * 328 / 4000, 8 * 10 * 16 / 1000, 4 * 80 * 2 * 4 / 2000
    assert engine + layers + products + read + attention == pytest.approx(6.204)
    assert speed.step(8, 10) == pytest.approx(6.204)
    constant, rows = 2 * (0.5 + 2 * 0.25), 6 * 2 * 1e-4 * 52 + 2 * (6 * 288 / 10000 + 40 / 1000) + 4 * 21 * 8 / 2000
    assert constant + rows == pytest.approx(2.824)
    assert speed.prefill(6) == pytest.approx(2.824)
    assert speed.tokens_per_second(8, prompt=6, answer=9) == pytest.approx(72 / (12 + 8 * 0.824 + 8 * 6.332))


def test_forecasts_have_every_batch_and_fall_with_the_size() -> None:
    rates = [expected(MEASURED, shape, "int8", Settings()).tokens_per_second for shape in TYPICAL]
    assert all(list(rate) == [1, 8, 32] for rate in rates)
    assert [rate[1] for rate in rates] == sorted((rate[1] for rate in rates), reverse=True)


@pytest.mark.parametrize(
    ("number", "parameters"), list(enumerate([494_032_768, 1_100_048_384, 3_085_938_688, 7_615_616_512]))
)
def test_typical_shapes_have_the_published_number_of_weights(number: int, parameters: int) -> None:
    assert TYPICAL[number].parameters == parameters


def needs(shape: Shape, precision: str, free: int) -> Needs:
    return needs_of(shape, Files(shape.weight_bytes("bf16")), precision, Settings(), free)


def test_files_are_as_large_as_forecast(tmp_path: Path) -> None:
    shape = demo_shape()
    original, small = publish_demo(Repository(tmp_path), WEIGHTS)
    assert shape.parameters == original.parameters
    for manifest in (original, small):
        weights = tmp_path / "models" / "demo" / manifest.version / "model.safetensors"
        header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
        assert shape.weight_bytes(manifest.precision) == weights.stat().st_size - header


def test_an_import_keeps_the_bf16_version_beside_the_8_bit_one() -> None:
    shape, free = TYPICAL[1], 64 * GB
    plain, small = (needs(shape, precision, free) for precision in ("bf16", "int8"))
    assert (plain.download, plain.kept) == (shape.weight_bytes("bf16"),) * 2
    assert (small.download, small.kept) == (plain.download, plain.kept + shape.weight_bytes("int8"))
    assert small.disk == small.download + small.kept
    assert small.converting - plain.converting == 12 * 32000 * 2048, "the embedding is the largest matrix"


def test_serving_needs_what_admission_asks_for(tmp_path: Path) -> None:
    store = Repository(tmp_path)
    manifest = publish_demo(store, WEIGHTS)[1]
    admitted = SharedEngines(store, lambda *_: pytest.fail("no engine is wanted")).needed_bytes(manifest)
    told = needs(demo_shape(), "int8", 8 * GB)
    assert told.loading == pytest.approx(admitted, rel=0.002)


def test_the_cache_is_sized_as_an_engine_sizes_it() -> None:
    shape = TYPICAL[1]
    told = needs(shape, "int8", 8 * GB)
    assert kv_bytes_per_token(shape, "int8", Settings()) == 2 * 22 * 4 * 64 * 2
    assert told.kv_tokens == 64 * 2048 and told.kv_cache == told.kv_tokens * 22528, "64 sequences of a whole window"
    less = needs(shape, "int8", 2 * GB)
    assert FREE_MEMORY_SHARE * 2 * GB - 16 * 22528 < less.kv_cache <= FREE_MEMORY_SHARE * 2 * GB
    assert kv_bytes_per_token(shape, "int8", Settings(kv_cache_dtype="int8")) == 2 * 22 * 4 * (64 + 4)
    assert needs(shape, "int8", 1000).kv_tokens == 0, "not one block"


@pytest.mark.parametrize(("free", "fits"), [(64 * GB, "yes"), (10 * GB, "tight"), (GB, "no")])
def test_what_fits(free: int, fits: str) -> None:
    told = forecast(TYPICAL[3], "int8", Settings(), replace(HOST, memory=Memory(64 * GB, free, None)), None)
    assert (told.fits, told.expected) == (fits, None)
    assert told.fits_converting == (free == 64 * GB or free == 10 * GB)
