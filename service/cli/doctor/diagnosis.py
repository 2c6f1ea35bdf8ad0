"""A diagnosis is all that `dosirak doctor` says: the host, what was measured, forecasts and checks. It is a value; its
JSON is the command's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from models import __version__
from models.imports.starter import DEMO, WEIGHTS
from models.weights.shapes import TYPICAL, Shape
from service.cli.doctor.checks import Check, checks
from service.cli.doctor.speed import ANSWER, LONG_PROMPT, PROMPT, Speed
from service.cli.doctor.surroundings import look
from service.deployments.needs import Files, Needs, kv_bytes_per_token, needs_of
from service.evaluation.host import machine
from service.evaluation.host import measured as measuring
from service.evaluation.host.machine import Host
from service.evaluation.host.measured import CannotMeasure, Measured
from service.settings import Settings

PRECISIONS: Final = ("bf16", "int8", "int8-weight", "int4")
Fits = Literal["yes", "tight", "no"]


class Expected(msgspec.Struct, frozen=True):
    """Speeds to expect, on the processor. By requests at once: output tokens a second of prompts of 128 tokens and
    answers of 64, prefill included, and milliseconds of a step in which all decode. `prefill_tokens_per_second`: of one
    prompt of 1,024 tokens, or of the window."""

    tokens_per_second: dict[int, float]
    step_ms: dict[int, float]
    prefill_tokens_per_second: float


class Forecast(msgspec.Struct, frozen=True):
    """A model in a precision. Bytes as in `service.deployments.needs.Needs`. `fits` is no where it could not be loaded
    now, tight where its KV cache may later outgrow the memory that is free; `fits_disk` and `fits_converting` are of
    its import."""

    model: str
    precision: str
    parameters: int
    download_bytes: int
    version_bytes: int
    importing_disk_bytes: int
    converting_bytes: int
    loading_bytes: int
    kv_cache_bytes: int
    kv_tokens: int
    serving_bytes: int
    fits: Fits
    fits_disk: bool
    fits_converting: bool
    expected: Expected | None


class Diagnosis(msgspec.Struct, frozen=True):
    """`serves`: no check is a problem. `measured` is null where measuring failed or was not asked for and nothing is
    known; then no forecast has speeds."""

    version: str
    serves: bool
    host: Host
    measured: Measured | None
    forecasts: tuple[Forecast, ...]
    checks: tuple[Check, ...]


def diagnose(settings: Settings, measure: bool) -> Diagnosis:
    """Looks at the host, and measures it. Without `measure` it takes the figures that are known."""
    host, figures, failure = machine.describe(settings), None, None
    around = look(settings)
    try:
        known = measuring.known(settings.data_dir, host.processor)
        figures = measuring.measure(settings) if measure else known
    except CannotMeasure as error:
        failure = error
    found = tuple(checks(host, around, figures, failure))
    if measure and figures is not None and all(each.state == "ok" for each in found if each.name == "load"):
        measuring.keep(figures, settings.data_dir)
    serves = all(each.state != "problem" for each in found)
    return Diagnosis(__version__, serves, host, figures, tuple(forecasts(settings, host, figures)), found)


def forecasts(settings: Settings, host: Host, measured: Measured | None) -> Iterator[Forecast]:
    """Yields the typical models and the demo, each in every precision."""
    for shape in (demo_shape(), *TYPICAL):
        for precision in PRECISIONS:
            yield forecast(shape, precision, settings, host, measured)


def demo_shape() -> Shape:
    return Shape.of_config(DEMO, json.loads((WEIGHTS / "config.json").read_text(encoding="utf-8")))


def forecast(shape: Shape, precision: str, settings: Settings, host: Host, measured: Measured | None) -> Forecast:
    free = host.memory.available
    needed = needs_of(shape, Files(shape.weight_bytes("bf16")), precision, settings, free)
    return Forecast(
        model=shape.name,
        precision=precision,
        parameters=shape.parameters,
        download_bytes=needed.download,
        version_bytes=needed.kept,
        importing_disk_bytes=needed.disk,
        converting_bytes=needed.converting,
        loading_bytes=needed.loading,
        kv_cache_bytes=needed.kv_cache,
        kv_tokens=needed.kv_tokens,
        serving_bytes=needed.serving,
        fits=_fits(needed, free),
        fits_disk=needed.disk <= host.disk.free,
        fits_converting=needed.converting <= free,
        expected=_expected(measured, shape, precision, settings),
    )


def _expected(measured: Measured | None, shape: Shape, precision: str, settings: Settings) -> Expected | None:
    """Returns None where nothing was measured, or, by an older version, not this precision."""
    if measured is None or precision not in measured.products:
        return None
    return expected(measured, shape, precision, settings)


def expected(measured: Measured, shape: Shape, precision: str, settings: Settings) -> Expected:
    kv_bytes = kv_bytes_per_token(shape, precision, settings)
    speed = Speed(measured, shape, precision, kv_bytes, settings.max_num_batched_tokens)
    prompt = min(LONG_PROMPT, shape.context_window)
    return Expected(
        {batch: speed.tokens_per_second(batch) for batch in measured.engine.step},
        {batch: 1e3 * speed.step(batch, PROMPT + ANSWER / 2) for batch in measured.engine.step},
        prompt / speed.prefill(prompt),
    )


def _fits(needed: Needs, free: int) -> Fits:
    if needed.loading > free or not needed.kv_tokens:
        return "no"
    return "yes" if needed.serving <= free else "tight"
