"""This test measures reports: how long a quick one takes, and what a request feels that ends one.

    python -m loadtest.reports quick --shape tinyllama --repository DIR   makes, imports and measures a checkpoint
    python -m loadtest.reports quick --repository DIR                     the demo model's int8 version
    python -m loadtest.reports idle --times 5     against a server whose default model has no report yet, as one with
                                                  DOSIRAK_DEFAULT_MODEL=demo:1 on a fresh data directory

`idle` waits until the server measures the model by itself, sends a request in the middle of it, and compares the time
to the first token with that of requests that come after as long a pause without a report.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx

from loadtest.checkpoints import SMALL, TINYLLAMA, save
from models.imports.importing import import_source
from models.imports.starter import WEIGHTS, publish_demo
from models.repository.report import Effort, Report
from models.repository.repository import Repository
from models.weights.quantize import quantize
from service.evaluation.evaluate import evaluate
from service.settings import Settings

SHAPES = {shape.name: shape for shape in (TINYLLAMA, SMALL)}
CHAT = [{"role": "user", "content": "불고기 도시락 두 개 주세요. 얼마예요?"}]
PAUSE_SECONDS = 3.0
"""Between the begin of a report and the request that ends it: the job's process loads or measures then."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    quick = verbs.add_parser("quick")
    quick.add_argument("--shape", choices=sorted(SHAPES))
    quick.add_argument("--repository", type=Path, required=True)
    quick.add_argument("--effort", choices=("quick", "full"), default="quick")
    idle = verbs.add_parser("idle")
    idle.add_argument("--url", default="http://127.0.0.1:3000")
    idle.add_argument("--times", type=int, default=5)
    return parser.parse_args()


def measured(repository: Repository, shape: str | None, effort: str) -> Report:
    """Publishes the model where it is missing, and measures its int8 version. Prints what begins when."""
    settings, before = Settings(data_dir=repository.layout.data_dir), [""]
    reference = f"{shape or 'demo'}:2"
    if not repository.versions(shape or "demo"):
        publish(repository, shape)

    def progress(fraction: float, doing: str) -> None:
        if doing != before[0]:
            print(f"{time.monotonic() - began:7.1f} s  {doing}", flush=True)
        before[0] = doing

    began = time.monotonic()
    chosen: Effort = "full" if effort == "full" else "quick"
    manifest = repository.resolve(reference)
    return evaluate(settings, repository, manifest, chosen, progress=progress, on_forecast=forecast)


def forecast(seconds: float) -> None:
    print(f"forecast: {seconds:.0f} s from now", flush=True)


def publish(repository: Repository, shape: str | None) -> None:
    if shape is None:
        publish_demo(repository, WEIGHTS)
        return
    with tempfile.TemporaryDirectory(dir=repository.layout.data_dir) as directory:
        source = Path(directory) / shape
        save(SHAPES[shape], source)
        quantize(repository, import_source(repository, str(source), shape))


def is_measuring(client: httpx.Client) -> bool:
    return any(job["state"] == "running" for job in client.get("/v1/jobs").json()["data"])


def first_token_seconds(client: httpx.Client) -> float:
    started = time.perf_counter()
    body = {"messages": CHAT, "parameters": {"max_new_tokens": 8}}
    with client.stream("POST", "/generate_stream", json=body) as response:
        response.raise_for_status()
        next(response.iter_lines())
        return time.perf_counter() - started


def beside_reports(url: str, times: int) -> tuple[list[float], list[float]]:
    """Returns the times to the first token of requests that end a report, and of requests without one."""
    beside, alone = [], []
    with httpx.Client(base_url=url, timeout=60) as client:
        first_token_seconds(client)
        for _ in range(times):
            while not is_measuring(client):
                time.sleep(0.1)
            time.sleep(PAUSE_SECONDS)
            beside.append(first_token_seconds(client))
            time.sleep(PAUSE_SECONDS)
            alone.append(first_token_seconds(client))
            print(f"{beside[-1] * 1000:7.1f} ms ends a report, {alone[-1] * 1000:7.1f} ms without one", flush=True)
    return beside, alone


def main() -> None:
    chosen = arguments()
    if chosen.verb == "quick":
        report = measured(Repository(chosen.repository), chosen.shape, chosen.effort)
        print(f"{report.seconds:.1f} s in all; {report.amounts}; {report.texts.tokens} tokens scored")
        for figure, interval in sorted(report.intervals.items()):
            print(f"  {figure:40} {interval.low:12.4f} … {interval.high:12.4f}  ({interval.items})")
        return
    beside, alone = beside_reports(chosen.url, chosen.times)
    print(f"median {median(beside) * 1000:.1f} ms beside a report, {median(alone) * 1000:.1f} ms without")


if __name__ == "__main__":
    main()
