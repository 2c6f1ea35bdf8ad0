"""This test compares one `llm-int8` layer with bitsandbytes' `Linear8bitLt`: error against fp32, and time per call.

    python -m loadtest.outliers --threads 1

Both layers get the same bf16 rows, in turn, in one process. bitsandbytes looks for outlier columns in the rows of each
call, so a row's result depends on its neighbours. Dosirak finds them once, at quantization, so a row depends on itself
only. Dosirak keeps the outliers' weights in 16 bits, bitsandbytes in 8.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import torch
from bitsandbytes.nn.modules import Int8Params, Linear8bitLt
from torch import Tensor

from models.weights.calibration import THRESHOLD
from models.weights.int8 import quantize_rows
from models.weights.loading import Outliers
from service.engine.runner.limits import seconds
from service.engine.runner.linear import Int8Linear, activation_reach
from service.engine.runner.native.library import library
from service.host import usable_cores

SHAPES = ((2048, 2048), (5632, 2048))
"""[out_features, in_features]"""
ROWS = (1, 8, 32)
ERROR_ROWS = 256
PLANTED = (7, 100, 1500)
FACTOR = 25.0
Layer = Callable[[Tensor], Tensor]


def planted_rows(count: int, depth: int, columns: tuple[int, ...] = PLANTED) -> Tensor:
    """Normally distributed, bf16 [count, depth], with `columns` made `FACTOR` times larger."""
    rows = torch.randn(count, depth, generator=torch.Generator().manual_seed(count))
    rows[:, list(columns)] *= FACTOR
    return rows.to(torch.bfloat16)


def ours(weight: Tensor, columns: tuple[int, ...] = ()) -> Int8Linear:
    """`weight` [out, in] as an `llm-int8` version stores it, with these outlier columns; as `int8` does, without."""
    chosen = torch.tensor(columns, dtype=torch.int64)
    values, scale = quantize_rows(weight.index_fill(1, chosen, 0))
    kept = Outliers(chosen.to(torch.int32), weight[:, chosen].to(torch.bfloat16)) if columns else None
    return Int8Linear(values, scale, outliers=kept)


def theirs(weight: Tensor) -> Linear8bitLt:
    """`weight` [out, in] fp32 in bitsandbytes' form, with the threshold that ours has."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # else it says at every call that it casts to fp16
    width, depth = weight.shape
    layer = Linear8bitLt(depth, width, bias=False, has_fp16_weights=False, threshold=THRESHOLD)
    layer.weight = Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False)
    layer.to("cpu")  # type: ignore[no-untyped-call]  # which quantizes
    layer.eval()  # in training mode it would multiply by dequantized weights instead
    return layer


def reach() -> int:
    """The largest code of an activation in ours: 127, or 63 on processors that would saturate."""
    kernels = library()
    return activation_reach() if kernels is None else kernels.activation_reach


def error(layer: Layer, weight: Tensor, rows: Tensor) -> float:
    """Root mean square of the difference from the fp32 layer's outputs, relative to theirs."""
    exact = rows.float() @ weight.T
    return math.sqrt(float((layer(rows).float() - exact).square().mean() / exact.square().mean()))


def _line(shape: tuple[int, int], columns: tuple[int, ...], repeats: int) -> str:
    width, depth = shape
    weight = torch.randn(width, depth, generator=torch.Generator().manual_seed(0)) * 0.02
    layers: list[Layer] = [ours(weight, columns), theirs(weight)]
    errors = [error(layer, weight, planted_rows(ERROR_ROWS, depth, columns)) for layer in layers]
    plain = error(ours(weight), weight, planted_rows(ERROR_ROWS, depth, columns))
    cells = [f"{depth} → {width}", str(len(columns)), *(f"{each:.3%}" for each in (*errors, plain))]
    for count in ROWS:
        rows = planted_rows(count, depth, columns)
        mine, other = seconds([partial(layer, rows) for layer in layers], repeats)
        cells.append(f"{mine * 1e3:.2f} / {other * 1e3:.2f} ({other / mine:.1f}x)")
    return "| " + " | ".join(cells) + " |"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=31)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    level = kernels.level if (kernels := library()) else "torch"
    print(f"bitsandbytes {version('bitsandbytes')}; ours on {level}, activation codes up to {reach()};")
    print(f"{options.threads} threads, medians of {options.repeats} calls in turn\n")
    titles = ["layer", "outlier columns", "error, ours", "theirs", "plain int8"]
    titles += [f"{count} rows, ms, ours / theirs" for count in ROWS]
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    for shape in SHAPES:
        for columns in ((), PLANTED):
            print(_line(shape, columns, options.repeats), flush=True)


if __name__ == "__main__":
    main()
