"""This test compares the doctor's forecasts with what `make bench` measured of the same models, beside each other.

    python -m loadtest.bench --quick --only "dosirak int8" "dosirak bf16" "dosirak demo" --out FOLDER
    python -m loadtest.forecasts FOLDER

It measures this host as `dosirak doctor` does, `--times` times, before it reads the figures. A ratio is forecast over
measured; 1.25 and 0.8 are the bounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from loadtest.bench.journal import Journal
from models.weights.shapes import TYPICAL
from service.cli.doctor.diagnosis import Expected, demo_shape, expected
from service.evaluation.host.measured import Measured, measure
from service.settings import Settings

BATCHES = (1, 8, 32)
SYSTEMS = (
    ("dosirak int8 http", TYPICAL[1], "int8"),
    ("dosirak int8 offline no lookup", TYPICAL[1], "int8"),
    ("dosirak bf16 http", TYPICAL[1], "bf16"),
    ("dosirak demo http", demo_shape(), "int8"),
    ("dosirak demo offline", demo_shape(), "int8"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    settings, journal = Settings(), Journal(options.folder / "figures.jsonl")
    runs = [measure(settings) for _ in range(options.times)]
    for run in runs:
        rates = ", ".join(f"{name} {_most(run, name):.0f}" for name in run.products)
        print(f"memory read {run.memory_read_gb_s:.1f} GB/s, GOP/s: {rates}; measured in {run.seconds:.1f} s")
    print("system | figure | forecast | measured | ratio")
    for system, shape, precision in SYSTEMS:
        each = [expected(run, shape, precision, settings) for run in runs]
        for name, figure, values in _figures(each):
            found = journal.figure(system, name, figure)
            if found is not None:
                forecast = median(values)
                print(f"{system} | {name} {figure} | {forecast:.4g} | {found:.4g} | {forecast / found:.2f}")


def _figures(each: list[Expected]) -> Iterator[tuple[str, str, list[float]]]:
    for batch in BATCHES:
        yield f"decode-{batch}", "tokens_per_second", [one.tokens_per_second[batch] for one in each]
        yield f"decode-{batch}", "step_ms", [one.step_ms[batch] for one in each]
    yield "prefill", "tokens_per_second", [one.prefill_tokens_per_second for one in each]


def _most(run: Measured, precision: str) -> float:
    rates = run.products[precision]
    return rates[max(rates)]


if __name__ == "__main__":
    main()
