"""This test simulates fleets, from two instances to 10^9 turns a day: what each size needs, and what ends first.

    python -m loadtest.scale [--costs FILE] [--line A B C D --kv-bytes-a-token N] [--images docs/images]
    python -m loadtest.scale --check            the simulation against one and two real instances

The engine core, its policies and the prefix router are the product's. The cost line is fitted, and the other seconds
are unit costs (`python -m loadtest.unit_costs`). Chats are `loadtest.fleet.chats`. `--line` is another model's cost
line, as `GET /v1/batching` shows it. It prints Markdown, and draws `scale-*.svg` into `--images`. `--check` exits with
1 where the simulation is more than 15 % off.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
from msgspec import structs

from loadtest.counters import serving, until_ready
from loadtest.fleet import costs as unit_costs
from loadtest.fleet import real
from loadtest.fleet.chats import POLICIES, Habits, arrivals, policy
from loadtest.fleet.costs import UnitCosts
from loadtest.fleet.drawing import lines, short
from loadtest.fleet.growth import CEILINGS, Need, need
from loadtest.fleet.instance import Instance, Shape
from loadtest.fleet.simulation import Outcome, Simulation

SEED: Final = 7
FLEET: Final = 4
LOADS: Final = (0.4, 0.6, 0.8, 0.95, 1.1)
SHOWN_LOAD: Final = 0.6
SIZES: Final = (1e5, 1e6, 1e7, 1e8, 1e9)
KV_BYTES: Final = 1 << 30
"""Of the cache of an instance."""
OFF: Final = 0.15
CHECK_VOCABULARY: Final = 3072


def simulate(shape: Shape, count: int, name: str, rate: float, seconds: float, habits: Habits) -> Outcome:
    """One day of `seconds` with a mean of `rate` turns a second, on `count` instances."""
    instances = [Instance(number, shape) for number in range(count)]
    return Simulation(instances, policy(name, Random(SEED))).run(arrivals(Random(SEED), rate, seconds, habits))


def saturation(shape: Shape, habits: Habits) -> float:
    """Estimates the turns a second at which one engine computes all the time, without any cache."""
    a, b, c, _ = shape.line
    streams = 16
    step = a + streams * (b + c * (habits.question + habits.answer))
    prefill = b * (habits.system + habits.question + (habits.turns - 1) / 2 * habits.answer)
    api = shape.turn_seconds + habits.answer * shape.event_seconds
    return min(1 / (habits.answer * step / streams + prefill), 1 / api)


def by_policy(shape: Shape, habits: Habits, turns: int) -> dict[str, list[tuple[float, Outcome]]]:
    """Returns each policy's outcomes by turns a second of one instance at the day's busiest, in a fleet of FLEET."""
    most = saturation(shape, habits)
    found: dict[str, list[tuple[float, Outcome]]] = {}
    for name in POLICIES:
        for load in LOADS:
            rate = load * most * FLEET / (1 + habits.swing)
            outcome = simulate(shape, FLEET, name, rate, turns / rate, habits)
            found.setdefault(name, []).append((load * most, outcome))
    return found


def capacity(curve: Sequence[tuple[float, Outcome]], limit: float) -> float:
    """Returns the turns a second at which p95 of the first token reaches `limit`, between the loads beside it."""
    below = (0.0, 0.0)
    for rate, outcome in curve:
        late = outcome.first_token(95)
        if late > limit:
            share = (limit - below[1]) / (late - below[1])
            return below[0] + share * (rate - below[0])
        below = (rate, late)
    return below[0]


def lost_instance(shape: Shape, habits: Habits, rate: float, turns: int) -> Iterator[tuple[str, Outcome]]:
    """A fleet that loses one of its instances in the middle of the day: cold caches, and turns that begin again."""
    for name in POLICIES:
        chats = arrivals(Random(SEED), rate, turns / rate, habits)
        instances = [Instance(number, shape) for number in range(FLEET)]
        yield name, Simulation(instances, policy(name, Random(SEED)), lost_at=turns / rate / 2).run(chats)


def report(costs: UnitCosts, turns: int, limit: float, images: Path | None) -> None:
    habits, shape = Habits(), costs.shape(KV_BYTES)
    if not turns:
        print_needs(_needs(SHOWN_LOAD * saturation(shape, habits), costs, images))
        return
    curves = by_policy(shape, habits, turns)
    print(f"\nFleet of {FLEET}; limit: p95 of the first token {limit:g} s; {turns} turns a run\n")
    print("| placed | turns a second an instance, within the limit | p95 TTFT at 60 % | prompt tokens cached |")
    print("|---|---:|---:|---:|")
    for name, curve in curves.items():
        at = curve[LOADS.index(SHOWN_LOAD)][1]
        print(f"| {name} | {capacity(curve, limit):.2f} | {1e3 * at.first_token(95):,.0f} ms | {at.hit_ratio:.0%} |")
    best = max(capacity(curve, limit) for curve in curves.values())
    print(f"\nOne of {FLEET} lost at noon, at {0.5 * best:.2f} turns a second an instance\n")
    print("| placed | p95 TTFT | p99 TTFT | prompt tokens cached |\n|---|---:|---:|---:|")
    for name, outcome in lost_instance(shape, habits, 0.5 * best * FLEET / (1 + habits.swing), turns):
        p95, p99 = (1e3 * outcome.first_token(percent) for percent in (95, 99))
        print(f"| {name} | {p95:,.0f} ms | {p99:,.0f} ms | {outcome.hit_ratio:.0%} |")
    print_needs(_needs(best, costs, images))
    if images is not None:
        draw(curves, limit, images)


def _needs(capacity: float, costs: UnitCosts, images: Path | None) -> list[Need]:
    """Returns what each of SIZES needs, and draws it. Nothing is known of shared parts without PostgreSQL's costs."""
    needs = [need(size, capacity, costs, Habits()) for size in SIZES] if costs.database else []
    if needs and images is not None:
        parts = {
            name: [(each.turns_a_day, each.shared[name] / most) for each in needs] for name, most in CEILINGS.items()
        }
        axes = ("turns a day", "times what one of it bears")
        (images / "scale-limits.svg").write_text(
            lines("What is shared, and when one is too few", axes, parts, {"1": 1.0})
        )
    return needs


def print_needs(needs: Sequence[Need]) -> None:
    print("\n| turns a day | at the busiest | instances | engine cores | API cores | KV bytes | one is too few of |")
    print("|---:|---:|---:|---:|---:|---:|---|")
    for each in needs:
        over = ", ".join(f"{name} ({factor:.1f}x)" for name, factor in each.over) or "–"
        cells = (each.peak_turns, each.instances, each.engine_cores, each.api_cores, each.kv_bytes)
        print(f"| {short(each.turns_a_day)} | " + " | ".join(short(float(cell)) for cell in cells) + f" | {over} |")


def draw(curves: dict[str, list[tuple[float, Outcome]]], limit: float, images: Path) -> None:
    late = {name: [(rate, 1e3 * outcome.first_token(95)) for rate, outcome in curve] for name, curve in curves.items()}
    axes = ("turns a second of one instance, at the day's busiest", "ms")
    title = f"p95 of the time to the first token, {FLEET} instances"
    (images / "scale-routing.svg").write_text(lines(title, axes, late, {f"{limit:g} s": 1e3 * limit}))


async def check(costs: UnitCosts, rate: float, seconds: float) -> bool:
    """Compares one and two real instances with the simulation of the same chats. Returns whether all is within OFF."""
    within = True
    print("| instances | | measured | simulated | off by |\n|---:|---|---:|---:|---:|")
    for count in (1, 2):
        habits = Habits(pause=4, system=0, swing=0, vocabulary=CHECK_VOCABULARY, hears=False)
        measured, shapes = await measure(costs, count, rate, seconds, habits)
        instances = [Instance(number, shape) for number, shape in enumerate(shapes)]
        chats = arrivals(Random(SEED), rate, seconds, habits)
        simulated = Simulation(instances, policy("hash", Random(SEED))).run(chats)
        for name, there, here in (
            ("tokens a second", measured.tokens_a_second, simulated.tokens_a_second),
            ("p50 of a first token, ms", 1e3 * measured.first_token(50), 1e3 * simulated.first_token(50)),
            ("p50 of an answer, ms", 1e3 * measured.answer(50), 1e3 * simulated.answer(50)),
            ("p95 of an answer, ms", 1e3 * measured.answer(95), 1e3 * simulated.answer(95)),
        ):
            off = here / there - 1
            within &= abs(off) <= OFF
            print(f"| {count} | {name} | {there:,.1f} | {here:,.1f} | {off:+.1%} |", flush=True)
    return within


async def measure(
    costs: UnitCosts, count: int, rate: float, seconds: float, habits: Habits
) -> tuple[Outcome, list[Shape]]:
    """Returns the day of real instances, one thread each, and their shapes with the lines that their engines fitted."""
    settings = {"DOSIRAK_THREADS": "1", "DOSIRAK_KV_CACHE_BYTES": str(KV_BYTES), "DOSIRAK_KV_OFFLOAD_BYTES": "0"}
    async with AsyncExitStack() as sessions:
        with ExitStack() as servers, tempfile.TemporaryDirectory() as folder:
            clients = []
            for number in range(count):
                url, _ = servers.enter_context(serving("service.app:create", Path(folder, str(number)), settings))
                clients.append(await sessions.enter_async_context(aiohttp.ClientSession(url)))
            for client in clients:
                await until_ready(client)
            window = costs.engine.window
            await real.day(clients, arrivals(Random(SEED + 1), rate, 6.0, habits), window)  # fits the lines
            base = replace(costs.shape(KV_BYTES), window=window - real.WINDOW_LEFT)
            lines = [real.DaysLines() for _ in clients]
            listening = [asyncio.create_task(each.listen(client)) for each, client in zip(lines, clients, strict=True)]
            outcome = await real.day(clients, arrivals(Random(SEED), rate, seconds, habits), window)
            for each in listening:
                each.cancel()
            shapes = [replace(base, line=each.last, lines=each.lines) for each in lines]
            return outcome, [
                await real.calibrated(client, shape) for client, shape in zip(clients, shapes, strict=True)
            ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, help="of loadtest.unit_costs; the newest committed ones where not given")
    parser.add_argument("--line", type=float, nargs=4, metavar=("A", "B", "C", "D"))
    parser.add_argument("--kv-bytes-a-token", type=int, default=3840, help="of the model with that line")
    parser.add_argument(
        "--limit", type=float, default=0.5, help="p95 of the first token that a fleet may have, seconds"
    )
    parser.add_argument("--turns", type=int, default=500, help="of a simulated run; 0 runs none")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rate", type=float, default=1.0, help="of a check: turns a second, on all instances")
    parser.add_argument("--seconds", type=float, default=150.0, help="of a check")
    options = parser.parse_args()
    costs = unit_costs.read(options.costs or unit_costs.newest())
    if options.check:
        return int(not asyncio.run(check(costs, options.rate, options.seconds)))
    if options.line:
        a, b, c, d = options.line
        engine = structs.replace(costs.engine, line=(a, b, c, d), kv_bytes_a_token=options.kv_bytes_a_token)
        costs = structs.replace(costs, engine=engine)
    report(costs, options.turns, options.limit, options.images)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
