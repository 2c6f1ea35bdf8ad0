"""How long a start takes in an image, beside the same start outside of it: `python -m loadtest.image [--rounds 5]`.

Build the image first: `docker/build-local.sh --target cpu ARCHIVE`. It needs root and buildah. Both start with an empty
data directory, in turns; each publishes the demo model and loads it. A start ends when `/readyz` is 200. It prints the
medians and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docker" / "image"))

from container import Container, Image  # noqa: E402
from streams import Client  # noqa: E402

from loadtest.bench.running import free_port  # noqa: E402
from tests.e2e.built_image import buildah  # noqa: E402
from tests.e2e.server import end, python, starting, until_ready  # noqa: E402

USER: Final = 10001
MOST_SECONDS: Final = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", choices=("cpu", "demo"))
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    with mounted(f"localhost/dosirak:{asked.target}") as image:
        for number in range(asked.rounds):
            turns = [lambda: inside(image), outside]
            seconds = {turn: turns[turn]() for turn in ((0, 1) if number % 2 else (1, 0))}
            pairs.append((seconds[0], seconds[1]))
            print(f"round {number + 1}: {pairs[-1][0]:.2f} s in the image, {pairs[-1][1]:.2f} s outside", flush=True)
    within, without = (median(each) for each in zip(*pairs, strict=True))
    ratio = median(one / other for one, other in pairs)
    print(f"{asked.target}: {within:.2f} s in the image, {without:.2f} s outside, ratio {ratio:.2f}")


@contextmanager
def mounted(tag: str) -> Iterator[Image]:
    said = subprocess.run(buildah("inspect", "--type", "image", tag), check=True, capture_output=True, text=True).stdout
    container = subprocess.run(buildah("from", tag), check=True, capture_output=True, text=True).stdout.strip()
    try:
        root = subprocess.run(buildah("mount", container), check=True, capture_output=True, text=True).stdout.strip()
        yield Image.of(Path(root), json.loads(said))
    finally:
        subprocess.run(buildah("rm", container), check=False, capture_output=True)


def inside(image: Image) -> float:
    with Container.started(image, data_owner=USER) as container:
        seconds = container.until(Client(container.port, container.key).is_ready, MOST_SECONDS)
        container.terminate()
        container.end(60)
    if seconds is None:
        raise SystemExit("the image did not become ready")
    return seconds


def outside() -> float:
    """The same by the environment that runs this, with the bytecode that it has."""
    with tempfile.TemporaryDirectory() as folder:
        began, port = time.monotonic(), free_port()
        command = python("-m", "service.cli", "serve", "demo")
        server = starting(command, Path(folder) / "data", Path(folder) / "log", port, DOSIRAK_PORT=str(port))
        try:
            until_ready(server, MOST_SECONDS)
            return time.monotonic() - began
        finally:
            end(server)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
