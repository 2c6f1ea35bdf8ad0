"""This test measures the load runner itself: its processor time at 64 streams, and the error of its TTFT.

    python -m loadtest.generator_cost --streams 64 --seconds 20

It runs `loadtest.run` against `loadtest.fake_server`, which notes when it wrote each stream's first event. The error is
what the runner adds to TTFT: from the time that a request was due until it was sent, and from that event's time, by
the machine's one clock, until the runner says that it came. Exit status 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.alternating import end_on_sigterm
from loadtest.runner import result, sample
from service.evaluation.scenarios.figures import percentile

CORES, ERROR_MS = 0.5, 2.0
PORT = 3999
SCENARIO = """
name = "generator-cost"
[load]
kind = "closed"
users = {streams}
warmup_seconds = 3
seconds = {seconds}
min_samples = 20
[[requests]]
route = "/generate_stream"
max_new_tokens = {tokens}
[limits]
failed_ratio = 0
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=50, help="of an answer")
    parser.add_argument("--gap-ms", type=float, default=20, help="between an answer's tokens")
    return parser.parse_args()


@contextmanager
def fake_server(log: Path, gap_ms: float) -> Iterator[None]:
    words = ["--port", str(PORT), "--first-ms", "20", "--gap-ms", str(gap_ms), "--log", str(log)]
    command = [sys.executable, "-m", "loadtest.fake_server", *words]
    end_on_sigterm()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
            yield
        finally:
            server.terminate()


def errors_ms(out: Path, log: Path) -> list[float]:
    """Returns what the runner adds to TTFT, of every counted stream."""
    first = {each["id"]: each["first_at"] for each in map(json.loads, log.read_text().splitlines())}
    began, found = result.read(out).monotonic_began, []
    for each in sample.read(out / "samples.jsonl"):
        if each.counts and each.ttft_ms is not None:
            arrived = began + each.due + each.ttft_ms / 1e3
            found.append(1e3 * (arrived - first[each.id]) + each.send_delay_ms)
    return found


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        scenario, log = Path(folder, "scenario.toml"), Path(folder, "log.jsonl")
        scenario.write_text(SCENARIO.format(**vars(options)))
        with fake_server(log, options.gap_ms):
            command = ["-m", "loadtest.run", str(scenario), "--host", f"http://127.0.0.1:{PORT}", "--out", folder]
            done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr)
            return done.returncode
        made, errors = result.read(Path(folder)), errors_ms(Path(folder), log)
    p50, p95, p99 = (percentile(errors, each) or 0.0 for each in (50, 95, 99))
    print(f"{options.streams} streams, {made.figures['tokens_per_second']:,.0f} events a second, {made.commit}")
    print(f"processor: {made.generator_cores:.2f} cores; goal at most {CORES}")
    print(
        f"error of TTFT, {len(errors)} streams: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f} ms; goal {ERROR_MS} at p95"
    )
    return int(made.generator_cores > CORES or p95 > ERROR_MS)


if __name__ == "__main__":
    raise SystemExit(main())
