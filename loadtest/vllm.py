"""This test compares vLLM behind our API with its own server: tokens a second, TTFT, processor time, memory.

    python -m loadtest.vllm [--model demo|0.5B] [--only 1 8 32] [--pairs 6] [--out FILE]

Both run the interpreter of `DOSIRAK_VLLM_PYTHON` on the same directory of the same version with the same arguments, and
get the same bodies at `/v1/completions`: token ids in, a stream out, greedy, without an end. Rounds against the one and
the other alternate; the other is idle then. Ratios are medians of the pairs. A level of concurrent requests is a piece
of a minute or two; with `--lock FILE` each piece holds the file's lock, for machines where measurements take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import fcntl
import json
import os
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import IO, Any, Final

import psutil

from loadtest.alternating import in_turns
from loadtest.bench.cache import CACHE, Cache
from loadtest.bench.running import Dialect, Launch, Served, family, free_port
from loadtest.bench.wave import Asked, random_prompts, throughput
from loadtest.checkpoints import DEMO, WIDE, Shape
from models.repository.repository import Repository
from service.deployments.engine_config import engine_config, worker_of
from service.deployments.engine_options import EngineOptions
from service.engine.kinds.kinds import kind_of, require_vllm, vllm_python
from service.engine.kinds.options import VLLM
from service.engine.vllm.mapping import engine_arguments
from service.host import processor_name
from service.settings import Settings

OURS, THEIRS = "through us", "vllm serve"
MODELS: Final = {"demo": DEMO, "0.5B": WIDE}
LEVELS: Final = (1, 8, 32)
PROMPT, NEW = 128, 64
ROUND_REQUESTS: Final = 4
"""A round asks so many at least, one wave of concurrent requests after the other."""
KV_BYTES: Final = 1 << 30
SERVER: Final = "vllm.entrypoints.openai.api_server"
"""What `vllm serve` runs: in the CPU wheel the command itself asks for a package of another name, and ends."""
START_SECONDS: Final = 900.0
SETTLE_SECONDS: Final = 0.3
LOCK_SECONDS: Final = 0.05
RATIO, TTFT_MS, BYTES = 0.97, 3.0, 300e6
"""The goals: of its tokens a second at least, more milliseconds to the first token and more bytes at most."""
DATA: Final = b"data: {"
"""What the events with tokens begin with; the last says [DONE]."""


@dataclass(frozen=True, slots=True)
class Round:
    tokens_per_second: float
    ttft: float
    processor_us: float
    """Of all its processes, for a token."""
    api_us: float
    """Of the process that speaks HTTP, for a token."""


@dataclass(frozen=True, slots=True)
class Level:
    """What one number of concurrent requests gave; the medians of the pairs."""

    concurrent: int
    pairs: int
    ratio: float
    ratio_quartiles: tuple[float, float]
    ttft_added_ms: float
    ours: Round
    theirs: Round

    @property
    def holds(self) -> bool:
        return self.ratio >= RATIO and self.ttft_added_ms <= TTFT_MS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="demo")
    parser.add_argument("--only", type=int, nargs="+", default=LEVELS, metavar="N", help="concurrent requests")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--cache", type=Path, default=CACHE, help="for checkpoints and versions")
    parser.add_argument("--lock", type=Path, help="a file whose lock each piece holds")
    parser.add_argument("--out", type=Path, help="for the figures, as JSON")
    return parser.parse_args()


@asynccontextmanager
async def alone(lock: Path | None) -> AsyncIterator[None]:
    """Holds the file's lock. It is tried again and again: a wait in the kernel could not be interrupted."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        while not _locked(file):  # noqa: ASYNC110 - another process's lock
            await asyncio.sleep(LOCK_SECONDS)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def body(reference: str, asked: Asked) -> dict[str, object]:
    return {
        "model": reference,
        "prompt": asked.token_ids,
        "max_tokens": asked.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def told(event: dict[str, Any], before: int) -> list[int]:
    """An event with text is one token, or several where the server fell behind; the usage at the end tells the rest."""
    if usage := event.get("usage"):
        return [0] * (int(usage["completion_tokens"]) - before)
    return [0] * any(choice["text"] for choice in event["choices"])


def launches(cache: Cache, shape: Shape, logs: Path) -> dict[str, tuple[Launch, int, str]]:
    """Returns how each is started, its port, and the path that says that it is ready."""
    reference, kind = cache.version_of(shape, "bf16"), kind_of(VLLM, None)
    settings = Settings(data_dir=cache.repository, kv_cache_bytes=KV_BYTES)
    repository = Repository(cache.repository)
    config = engine_config(settings, repository, repository.resolve(reference), 0, EngineOptions(kind=kind))
    given = engine_arguments(config, config.model_dir, KV_BYTES)
    ports = free_port(), free_port()
    for ours_alone in ("disable_log_stats", "enable_logging_iteration_details"):
        del given[ours_alone]  # the first is off by default there; the second costs, and tells our cost line alone
    worker = worker_of(settings, kind)
    serve = [worker.interpreter, "-m", SERVER, "--served-model-name", reference]
    serve += ["--host", "127.0.0.1", "--port", str(ports[1]), "--disable-uvicorn-access-log"]
    for name, value in given.items():
        option = name.replace("_", "-")
        serve += (
            [f"--{option}" if value else f"--no-{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
        )
    ours = {
        "DOSIRAK_DATA_DIR": str(cache.repository),
        "DOSIRAK_DEFAULT_MODEL": reference,
        "DOSIRAK_ENGINE": VLLM,
        "DOSIRAK_KV_CACHE_BYTES": str(KV_BYTES),
        "DOSIRAK_IDLE_REPORTS": "false",
        "DOSIRAK_LOAD_TIMEOUT_SECONDS": str(START_SECONDS),
        "DOSIRAK_PORT": str(ports[0]),
    }
    theirs = {name: value for name, value in worker.env.items() if name.startswith(("VLLM_", "HF_"))}
    theirs |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PYTHONPATH": ""}
    return {
        OURS: (Launch([sys.executable, "-m", "service.cli", "serve"], logs / "ours.log", ours), ports[0], "/readyz"),
        THEIRS: (Launch(serve, logs / "theirs.log", theirs), ports[1], "/health"),
    }


@asynccontextmanager
async def serving(cache: Cache, shape: Shape) -> AsyncIterator[dict[str, Served]]:
    """Both servers, ready. They start one after the other: a start takes all cores."""
    cache.logs.mkdir(parents=True, exist_ok=True)
    reference, servers = cache.version_of(shape, "bf16"), dict[str, Served]()
    try:
        for name, (launch, port, ready) in launches(cache, shape, cache.logs).items():
            launch.log.unlink(missing_ok=True)
            dialect = Dialect(ready, "/v1/completions", lambda asked: body(reference, asked), told, DATA)
            servers[name] = await Served.start(launch, dialect, port, START_SECONDS)
            print(f"{name}: ready after {servers[name].ready_seconds:.0f} s", flush=True)
        yield servers
    finally:
        for served in servers.values():
            await served.end()


async def one_round(served: Served, waves: Sequence[Sequence[Asked]]) -> Round:
    await asyncio.sleep(SETTLE_SECONDS)
    before = _processor(served)
    answers = [await served.wave(wave) for wave in waves]
    spent = [after - former for after, former in zip(_processor(served), before, strict=True)]
    every = [each for wave in answers for each in wave]
    tokens = sum(len(each.token_ids) for each in every)
    return Round(
        tokens / sum(len(wave) * NEW / throughput(wave) for wave in answers),
        statistics.median(each.ttft for each in every),
        1e6 * spent[0] / tokens,
        1e6 * spent[1] / tokens,
    )


def _processor(served: Served) -> tuple[float, float]:
    """Returns the processor seconds of all processes, and of those that hold no engine."""
    taken = [(each, each.cpu_times()) for each in family(served.pid)]
    seconds = {each: times.user + times.system for each, times in taken}
    return sum(seconds.values()), sum(value for each, value in seconds.items() if not _computes(each))


def _computes(process: psutil.Process) -> bool:
    """Whether it is a process of vLLM's core: ours by its module, theirs by the titles that they give themselves."""
    words = " ".join(process.cmdline())
    return any(word in words for word in ("engines.vllm.worker", "EngineCore", "Worker", "resource_tracker"))


def waves_of(shape: Shape, concurrent: int, draw: Random) -> list[list[Asked]]:
    count = max(1, ROUND_REQUESTS // concurrent)
    return [[Asked(ids, NEW) for ids in random_prompts(shape, concurrent, PROMPT, draw)] for _ in range(count)]


async def level(servers: dict[str, Served], shape: Shape, concurrent: int, pairs: int) -> Level:
    draw, rounds = Random(concurrent), {name: list[Round]() for name in servers}
    for served in servers.values():
        await one_round(served, waves_of(shape, concurrent, draw))
    asked: list[list[Asked]] = []
    for number, is_theirs in enumerate(in_turns(pairs)):
        asked = asked if number % 2 else waves_of(shape, concurrent, draw)
        name = THEIRS if is_theirs else OURS
        rounds[name].append(await one_round(servers[name], asked))
    ratios = [a.tokens_per_second / b.tokens_per_second for a, b in zip(*rounds.values(), strict=True)]
    added = [a.ttft - b.ttft for a, b in zip(*rounds.values(), strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Level(
        concurrent,
        pairs,
        statistics.median(ratios),
        (low, high),
        1e3 * statistics.median(added),
        *(_median(each) for each in rounds.values()),
    )


def _median(rounds: Sequence[Round]) -> Round:
    columns = zip(*(asdict(each).values() for each in rounds), strict=True)
    return Round(*(statistics.median(each) for each in columns))


def memory(served: Served) -> dict[str, int]:
    """Returns bytes: of all its processes, what they share counted once, and of those that hold no engine."""
    held = [(each, each.memory_full_info()) for each in family(served.pid)]
    return {
        "all": sum(info.pss for _, info in held),
        "api": sum(info.pss for each, info in held if not _computes(each)),
        "processes": len(held),
    }


async def measure(options: argparse.Namespace) -> int:
    cache, shape = Cache(options.cache.expanduser()), MODELS[options.model]
    cache.prepare_demo() if shape is DEMO else cache.prepare_ours({shape: ()})
    figures: dict[str, Any] = {
        "command": " ".join(("python -m loadtest.vllm", *sys.argv[1:])),
        "host": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores",
        "date": str(datetime.date.today()),
        "model": options.model,
    }
    levels: list[Level] = []
    async with serving(cache, shape) as servers:
        for concurrent in options.only:
            async with alone(options.lock):
                found = await level(servers, shape, concurrent, options.pairs)
            print(shown(found), flush=True)
            levels.append(found)
            figures["levels"] = [asdict(each) for each in levels]
            figures["memory"] = {name: memory(served) for name, served in servers.items()}
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    ours, theirs = figures["memory"].values()
    adds = ours["all"] - theirs["all"]
    print(f"memory: {ours['all'] / 1e6:,.0f} and {theirs['all'] / 1e6:,.0f} MB; our API {ours['api'] / 1e6:,.0f} MB")
    return int(adds > BYTES or not all(each.holds for each in levels))


def shown(found: Level) -> str:
    low, high = found.ratio_quartiles
    ours, theirs = found.ours, found.theirs
    return (
        f"{found.concurrent} at once: {found.ratio:.3f}x of {found.pairs} pairs ({low:.3f} to {high:.3f}), "
        f"{ours.tokens_per_second:,.1f} and {theirs.tokens_per_second:,.1f} tokens a second; first token "
        f"{1e3 * ours.ttft:,.1f} and {1e3 * theirs.ttft:,.1f} ms ({found.ttft_added_ms:+.1f}); processor "
        f"{ours.processor_us:,.0f} and {theirs.processor_us:,.0f} us a token, without the engine "
        f"{ours.api_us:,.0f} and {theirs.api_us:,.0f}"
    )


def main() -> None:
    require_vllm(vllm_python(Settings().vllm_python))
    raise SystemExit(asyncio.run(measure(arguments())))


if __name__ == "__main__":
    main()
