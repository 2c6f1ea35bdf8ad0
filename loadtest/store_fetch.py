"""Fetching a version from a store, against the store's own speed, paired in one run.

    python -m loadtest.store_fetch [--url file:///path | s3://bucket/prefix] [--megabytes 256] [--rounds 9]

Both read the same object in the same parts at once and write it to the same disk, synced. `own` checks nothing; `ours`
is what an instance does: it hashes every byte and gives the file its name only if the digest is right. Rounds take
turns in who begins. Without `--url` the store is a directory beside the data. It writes into the store, which must be
empty, and clears what it wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from models.repository.store.fetching import AT_ONCE, PART_BYTES, copy_part, fetch
from models.repository.store.remote import Remote
from models.repository.store.shared_store import SharedStore, blob


def own(remote: Remote, path: str, size: int, target: Path) -> None:
    """Copies an object as fast as the store gives it: every part goes where it belongs as it comes."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:

        def copy(start: int) -> None:
            copy_part(remote, path, descriptor, start, min(size, start + PART_BYTES))

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(copy, range(0, size, PART_BYTES)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seconds_of(work: Callable[[], None], target: Path) -> float:
    started = time.perf_counter()
    work()
    elapsed = time.perf_counter() - started
    target.unlink()
    return elapsed


def measure(store: SharedStore, size: int, rounds: int, directory: Path) -> None:
    original, target = directory / "original", directory / "fetched"
    digest = hashlib.sha256()
    with original.open("wb") as file:
        for _ in range(size >> 20):
            part = os.urandom(1 << 20)
            digest.update(part)
            file.write(part)
    sha256, remote = digest.hexdigest(), store.remote
    store.put_blob(sha256, original)
    pair = {
        "own": lambda: own(remote, blob(sha256), size, target),
        "ours": lambda: fetch(remote, sha256, size, target),
    }
    taken: dict[str, list[float]] = {name: [] for name in pair}
    for number in range(rounds + 1):  # the first round is not counted
        for name in sorted(pair, reverse=bool(number % 2)):
            elapsed = seconds_of(pair[name], target)
            if number:
                taken[name].append(elapsed)
    ratios = [theirs / ours for theirs, ours in zip(taken["own"], taken["ours"], strict=True)]
    for name, times in taken.items():
        print(f"{name:5} {size / 1e6 / statistics.median(times):8.0f} MB/s, median of {rounds}")
    print(f"ours / own: {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")
    remote.delete(blob(sha256))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--url")
    arguments.add_argument("--megabytes", type=int, default=256)
    arguments.add_argument("--rounds", type=int, default=9)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = SharedStore.init(chosen.url or f"file://{directory}/store")
        measure(store, chosen.megabytes << 20, chosen.rounds, Path(directory))


if __name__ == "__main__":
    main()
