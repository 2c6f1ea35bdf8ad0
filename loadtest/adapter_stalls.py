"""This test measures how long a running answer pauses while adapters load: `python -m loadtest.adapter_stalls`.

One engine process runs one greedy answer. Adapters are loaded and released one after the other. The test compares the
gaps between tokens during a load with those without a load. The model has random weights of a 135M Llama's shape.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from loadtest.adapters import SHAPE, save_adapter, save_base
from service.engine.client.client import EngineClient
from service.engine.protocol.messages import EngineConfig, Request, SamplingParams
from service.settings import engine_environment

NEW = 1900


class Running:
    """Runs one answer after the other and notes the time of each token."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.times: list[float] = []

    async def run(self) -> None:
        for number in range(1_000_000):
            params = SamplingParams(max_tokens=NEW, min_tokens=NEW)
            ids = tuple((7 * at + number) % SHAPE["vocab_size"] for at in range(32))
            async for _ in self.client.generate(Request(str(number), ids, params)):
                self.times.append(time.perf_counter())

    def gaps(self, started: float, ended: float) -> list[float]:
        """Returns the gaps that overlap this time."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return [after - before for before, after in pairs if after > started and before < ended]


async def measure(directory: Path, rank: int, rounds: int) -> None:
    (directory / "base").mkdir()
    base = save_base(directory / "base", "bf16")
    config = EngineConfig(model_dir=str(base), precision="bf16", max_model_len=2048, speculation=False)
    client = EngineClient(config, env=engine_environment())
    await client.start()
    running = Running(client)
    task = asyncio.create_task(running.run())
    quiet, loading, seconds = list[float](), list[float](), list[float]()
    try:
        for number in range(rounds):
            made = await asyncio.to_thread(save_adapter, base, directory / f"adapter {number}", rank)
            await asyncio.sleep(1.0)
            started = time.perf_counter()
            await asyncio.sleep(1.0)
            between = time.perf_counter()
            await client.load_adapter(made.name, str(made))
            ended = time.perf_counter()
            await asyncio.sleep(0.5)
            quiet.append(max(running.gaps(started, between)))
            loading.append(max(running.gaps(between, ended)))
            seconds.append(ended - between)
            client.unload_adapter(made.name)
    finally:
        task.cancel()
        await client.stop()
    shown = {"nothing is loaded": quiet, "an adapter is loaded": loading}
    for what, gaps in shown.items():
        print(f"longest gap while {what}: median {1e3 * median(gaps):.0f} ms, longest {1e3 * max(gaps):.0f} ms")
    print(f"loading an adapter of rank {rank}: median {1e3 * median(seconds):.0f} ms; {rounds} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options.rank, options.rounds))


if __name__ == "__main__":
    main()
