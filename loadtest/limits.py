"""This test measures the machine's limits, memory read and matrix products, and our kernels' share of them.

`python -m loadtest.limits` prints both in one run, as medians of alternating repetitions. The measuring is
`service.engine.runner.limits`, which `dosirak doctor` forecasts from.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from service.engine.runner.limits import DEPTH, OUTPUTS, memory_read, seconds, ways, weight_memory
from service.host import usable_cores

ROWS = (1, 2, 4, 8, 16, 32, 128, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    memory = weight_memory()
    read = memory_read(memory, options.repeats)
    print(f"{options.threads} threads; memory read {read:.1f} GB/s; weights [{OUTPUTS}, {DEPTH}]")
    chosen = ways(memory)
    print("GOP/s by rows | " + " | ".join(way.name for way in chosen))
    for count in ROWS:
        rows = torch.randn(count, DEPTH)
        runs = [partial(way.run, rows) for way in chosen]
        taken = seconds(runs, options.repeats if count < 128 else 2)
        work = [way.operations(count) / 1e9 for way in chosen]
        print(f"{count} | " + " | ".join(f"{w / t:.1f}" for w, t in zip(work, taken, strict=True)), flush=True)


if __name__ == "__main__":
    main()
