"""Ours against every peer on the same prompts in one run, medians of three rounds.

    python -m loadtest.bench                  everything; --quick for one round
    python -m loadtest.bench --only openvino dosirak --works decode-1 decode-8
    python -m loadtest.bench --model smollm2  the catalogue's model: tokens a second and quality
    python -m loadtest.bench --mixed          mixed load against BentoML's dispatcher and fixed (size, wait) batching

What is made once (checkpoints, environments of the peers, converted models) goes to --cache. Every figure is written to
the results folder as it is known: a run that is stopped, or whose --minutes are spent, goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from loadtest.alternating import end_on_sigterm
from loadtest.bench import mixed, real, report
from loadtest.bench.cache import CACHE, Cache, CannotMake
from loadtest.bench.journal import Journal
from loadtest.bench.session import Limits, Session
from loadtest.bench.systems import System, catalogue, named, peers
from loadtest.bench.works import BY_NAME, WORKS
from loadtest.checkpoints import DEMO

RESULTS = Path(__file__).parent.parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, 90 s at most for one work of one system")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="systems whose name begins so")
    parser.add_argument("--works", nargs="+", default=[], choices=sorted({*BY_NAME, "quality"}), metavar="WORK")
    parser.add_argument("--again", nargs="+", default=[], metavar="NAME", help="measure these systems anew")
    parser.add_argument("--fresh", action="store_true", help="start over, whatever the results folder holds")
    parser.add_argument("--mixed", action="store_true", help="the mixed loads instead")
    parser.add_argument("--model", default="", metavar="NAME", help="the catalogue's model instead: speed and quality")
    parser.add_argument("--report", action="store_true", help="only write the tables of what is recorded")
    parser.add_argument("--minutes", type=float, default=60.0, help="start nothing new after so long")
    parser.add_argument("--cell-seconds", type=float, default=0.0, help="most for one work of one system")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--out", type=Path, default=RESULTS / date.today().isoformat())
    return parser.parse_args()


def prepare(cache: Cache, chosen: Sequence[System]) -> dict[str, str]:
    """Everything that the systems need. Peers that cannot be had, with the reason; ours must be there."""
    cache.root.mkdir(parents=True, exist_ok=True)
    try:
        cache.prepare_ours(
            {
                shape: {system.precision for system in chosen if system.ours and system.shape is shape}
                for shape in dict.fromkeys(system.shape for system in chosen if system.shape is not DEMO)
            }
        )
        cache.prepare_demo()
    except CannotMake as error:
        raise SystemExit(f"the checkpoints could not be made: {error}") from None
    absent = {}
    for peer in peers(chosen):
        try:
            cache.prepare_peer(
                peer, [(system.shape, system.weights or system.precision) for system in chosen if system.peer == peer]
            )
        except CannotMake as error:
            absent[peer] = str(error)
            print(f"{peer} is left out: {error}", flush=True)
    return absent


def main() -> int:
    options = arguments()
    end_on_sigterm()
    cache = Cache(options.cache.expanduser())
    path = options.out / "figures.jsonl"
    if options.fresh:
        path.unlink(missing_ok=True)
    cell = options.cell_seconds or (90.0 if options.quick else 300.0)
    limits = Limits(cell, time.monotonic() + options.minutes * 60)
    rounds = 1 if options.quick else options.rounds
    if options.model:
        wanted = real.Wanted(options.only, options.works, options.again, rounds)
        if options.report:
            return real.report(cache, options.out, real.shape_or_exit(cache, options.model), {})
        return asyncio.run(real.run(cache, options.out, options.model, wanted, limits))
    if "quality" in options.works:
        raise SystemExit("quality is a work of --model alone: random weights predict nothing")
    journal = Journal(path)
    chosen = named(catalogue(), options.only)
    if options.again:
        journal.forget({system.name for system in named(catalogue(), options.again)})
    absent = {} if options.report else prepare(cache, chosen)
    if options.mixed:
        return asyncio.run(mixed.run(cache, options.out, options.quick))
    systems = [system for system in chosen if system.peer not in absent]
    works = [BY_NAME[name] for name in options.works] or list(WORKS)
    session = Session(cache, journal, limits)
    whole = options.report or asyncio.run(session.run(systems, works, rounds))
    versions = {peer: cache.version(peer) for peer in peers(catalogue()) if peer not in absent}
    command = " ".join(["python -m loadtest.bench", *sys.argv[1:]]).strip()
    context = report.Context(date.today().isoformat(), command, versions, absent)
    report.write(options.out, journal, catalogue(), context)
    print(
        f"\n{options.out / 'README.md'}" + ("" if whole else ": the time is spent; the same command goes on from here")
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
