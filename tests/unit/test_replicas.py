"""Several replicas as one engine: order, shares, and conversations that go where they are known. Fakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import pytest

from service.engine.client import prefix_router
from service.engine.client.engine import EngineFailed, EngineState
from service.engine.client.prefix_router import BLOCK, BLOCKS_A_REQUEST, MOST_BLOCKS, PrefixRouter
from service.engine.client.replicas import SILENT_SECONDS, Replicas
from service.engine.protocol.messages import EngineStats, FinishReason, Request, SamplingParams, StepOutput
from service.errors import Unavailable
from service.observability.metrics import Metrics
from tests.fakes import InProcessEngine, expected_tokens, make_request, tokens_of


class Replica(InProcessEngine):
    """Starts its answers when it is let."""

    def __init__(self, number: int, packed: Callable[[], str], failing: bool = False) -> None:
        super().__init__()
        self.number, self.packed, self.failing = number, packed, failing
        self.lacking = "nothing"
        self.told: EngineStats | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[str] = []

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        if self.failing:
            raise EngineFailed("no memory")
        await super().start(on_loading)
        assert self.info is not None
        self.info = msgspec.structs.replace(self.info, packed_weights=f"of {self.number}")

    @property
    def stats(self) -> EngineStats:
        return self.told or super().stats

    def lacks(self, adapter: str) -> str:
        return "no such file" if adapter == self.lacking and self.state is EngineState.READY else ""

    async def generate(self, request: Request):  # type: ignore[no-untyped-def]
        self.asked.append(request.id)
        await self.gate.wait()
        async for output in super().generate(request):
            yield output


class World:
    def __init__(self, count: int = 2, most_at_once: int = 2, failing: int | None = None, **options: Any) -> None:
        self.made: list[Replica] = []
        self.failing = failing
        self.engine = Replicas(self.make, count, most_at_once, **options)

    def make(self, number: int, packed: Callable[[], str]) -> Replica:
        self.made.append(Replica(number, packed, number == self.failing))
        return self.made[-1]

    def hold(self) -> None:
        for replica in self.made:
            replica.gate.clear()

    def release(self) -> None:
        for replica in self.made:
            replica.gate.set()


async def answer(engine: Replicas, request: Request) -> list[StepOutput]:
    return [output async for output in engine.generate(request)]


def asking(world: World, *requests: Request) -> list[asyncio.Task[list[StepOutput]]]:
    return [asyncio.create_task(answer(world.engine, request)) for request in requests]


async def test_all_are_started_and_answer() -> None:
    world = World(3)
    with pytest.raises(Unavailable):
        await answer(world.engine, make_request("early"))
    await world.engine.start()
    assert [replica.number for replica in world.made] == [0, 1, 2] == list(range(len(world.engine.replicas)))
    requests = [make_request(str(at), [at, 2, 3], max_tokens=5) for at in range(12)]
    for request, task in zip(requests, asking(world, *requests), strict=True):
        assert tokens_of(await task) == expected_tokens(request)
    assert all(replica.asked for replica in world.made)
    assert world.engine.stats.steps_total == sum(replica.stats.steps_total for replica in world.made)
    assert world.engine.stats.blocks_total == 3 * world.made[0].stats.blocks_total
    assert world.engine.stats.prefill_tokens_total == sum(r.stats.prefill_tokens_total for r in world.made) > 0
    await world.engine.stop()
    assert {replica.state for replica in world.made} == {EngineState.STOPPED} == {world.engine.state}


async def test_who_waits_is_served_in_order_by_whoever_is_free() -> None:
    world = World(2, most_at_once=1)
    await world.engine.start()
    world.hold()
    tasks = asking(world, *(make_request(str(at), [at] * 20, max_tokens=2) for at in range(6)))
    await asyncio.sleep(0.01)
    assert [replica.asked for replica in world.made] == [["0"], ["1"]], "each has one, four wait"
    world.made[1].gate.set()
    await asyncio.gather(*tasks[1:])
    assert world.made[1].asked == ["1", "2", "3", "4", "5"] and world.made[0].asked == ["0"]
    world.release()
    await tasks[0]


async def test_the_queue_is_by_priority_and_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an engine's own: whose owner has the fewest in the replicas, and whoever has waited gains a priority."""
    world = World(2, most_at_once=1)
    await world.engine.start()
    world.hold()
    now = time.monotonic()

    def of(name: str, owner: str, priority: int = 0, waited: float = 0.0) -> Request:
        asked = make_request(name, [1] * 20, max_tokens=2)
        return replace(asked, owner=owner, priority=priority, arrival=now - waited)

    queue = [*(of(f"a{at}", "a") for at in range(5)), of("line", "b", -11, waited=1e6), of("b0", "b"), of("b1", "b")]
    tasks = asking(world, *queue, of("first", "c", 9), of("old", "a", waited=91))
    await asyncio.sleep(0.01)
    assert sorted(world.made[0].asked + world.made[1].asked) == ["a0", "a1"]
    world.made[1].gate.set()
    await asyncio.gather(*tasks[1:])
    assert world.made[1].asked == ["a1", "first", "old", "b0", "b1", "a2", "a3", "a4", "line"]
    world.release()
    await tasks[0]


async def test_the_queue_is_in_the_figure_of_what_waits() -> None:
    metrics = Metrics()
    world = World(2, most_at_once=1, on_queue=metrics.model("demo", "1").on_queue)
    await world.engine.start()
    world.hold()
    tasks = asking(world, *(make_request(str(at), [at], max_tokens=2) for at in range(5)))
    await asyncio.sleep(0.01)

    def told() -> list[str]:
        lines = metrics.exposition().decode().splitlines()
        return [line.split()[-1] for line in lines if line.startswith("dosirak_num_requests_waiting{")]

    assert (world.engine.stats.waiting, told()) == (3, ["3.0"])
    metrics.model("demo", "1").on_step(EngineStats(waiting=2), replica=1)
    assert told() == ["5.0"], "those of the replicas too"
    world.release()
    await asyncio.gather(*tasks)
    metrics.model("demo", "1").on_step(EngineStats(), replica=1)
    assert (world.engine.stats.waiting, told()) == (0, ["0.0"])


async def test_one_that_falls_silent_gets_nothing_while_another_is_heard() -> None:
    world = World(2)
    await world.engine.start()
    world.made[0].silent_seconds = SILENT_SECONDS
    assert world.engine.silent_seconds == SILENT_SECONDS
    for at in range(4):
        await answer(world.engine, make_request(str(at), [at], max_tokens=2))
    assert not world.made[0].asked
    world.made[1].silent_seconds = SILENT_SECONDS
    await answer(world.engine, make_request("all are silent", [7], max_tokens=2))


async def test_one_that_leaves_the_queue_holds_up_nobody() -> None:
    world = World(1, most_at_once=1)
    await world.engine.start()
    world.hold()
    first, second, third = asking(world, *(make_request(id, [1, 2], max_tokens=2) for id in "abc"))
    await asyncio.sleep(0.01)
    second.cancel()
    world.release()
    await asyncio.gather(first, third)
    assert world.made[0].asked == ["a", "c"]


async def test_a_conversation_goes_where_it_is_known_unless_that_is_much_busier() -> None:
    world = World(2, most_at_once=100)
    await world.engine.start()
    opening = list(range(10 * BLOCK))
    await answer(world.engine, make_request("turn 1", opening, max_tokens=2))
    home = next(replica for replica in world.made if replica.asked)
    other = next(replica for replica in world.made if replica is not home)
    world.hold()
    most = 10 // BLOCKS_A_REQUEST + 1
    others = asking(world, *(make_request(f"busy {at}", [*opening, at], max_tokens=2) for at in range(most)))
    await asyncio.sleep(0.01)
    assert len(home.asked) == 1 + most and not other.asked
    more = asking(world, make_request("turn 2", [*opening, 7, 7], max_tokens=2))
    await asyncio.sleep(0.01)
    assert other.asked == ["turn 2"]
    world.release()
    await asyncio.gather(*others, *more)


async def test_a_replica_maps_the_weights_of_any_that_is_ready() -> None:
    """A place dies with its process, and one that maps the weights has a place for them too."""
    world = World(3)
    await world.engine.start()
    first, second, third = world.made
    assert {each.packed() for each in world.made} == {"of 0"}
    first.state = EngineState.RESTARTING
    assert first.packed() == "of 1"
    first.state, second.state = EngineState.READY, EngineState.RESTARTING
    assert second.packed() == "of 0"
    first.state = third.state = EngineState.RESTARTING
    assert first.packed() == "", "nobody has them: it packs them"


async def test_nothing_has_the_weights_while_the_first_replica_loads() -> None:
    world = World(2)
    assert world.made[0].packed() == ""


FULL = EngineStats(seats=4, running=4, seat_seconds=2.0, backlog_seconds=3.0, cost=(0.01,) * 4, steps_total=9)


@pytest.mark.parametrize("dead", [0, 1])
async def test_forecasts_are_those_of_the_replicas_that_are_ready(dead: int) -> None:
    """Half of the replicas frees seats half as often. A process that has just started forecasts nothing."""
    world = World(2, most_at_once=4)
    await world.engine.start()
    world.hold()
    tasks = asking(world, *(make_request(str(at), [at] * 20) for at in range(38)))
    await asyncio.sleep(0.05)
    for replica in world.made:
        replica.told = FULL

    def forecasts() -> tuple[int, float, float, tuple[float, ...]]:
        stats = world.engine.stats
        return stats.seats, stats.seat_seconds, stats.backlog_seconds, stats.cost

    assert forecasts() == (8, 1.0, 30.0, FULL.cost), "30 wait in the queue"
    world.made[dead].told, world.made[dead].state = EngineStats(), EngineState.RESTARTING
    assert forecasts() == (4, 2.0, 60.0, FULL.cost)
    world.made[dead].state = EngineState.READY
    assert forecasts() == (4, 1.0, 30.0, FULL.cost), "it takes requests again"
    for task in tasks:
        task.cancel()


async def test_totals_are_sums() -> None:
    world = World(2)
    await world.engine.start()
    totals: dict[str, Any] = {each.name: 3 for each in fields(EngineStats) if each.name.endswith("_total")}
    for replica in world.made:
        replica.told = EngineStats(**totals)
    stats = world.engine.stats
    assert {name: getattr(stats, name) for name in totals} == dict.fromkeys(totals, 6)


async def test_one_that_lacks_an_adapter_gets_requests_for_it_only_where_all_do() -> None:
    world = World(2, most_at_once=8)
    await world.engine.start()
    for replica in world.made:
        await replica.load_adapter("one", "anywhere")
    first, second = world.made
    first.lacking = "one"
    for at in range(4):
        await answer(world.engine, make_request(f"adapted {at}", [at], max_tokens=2, adapter="one"))
        await answer(world.engine, make_request(f"base {at}", [50 + at], max_tokens=2))
    assert not any("adapted" in name for name in first.asked) and any("base" in name for name in first.asked)
    second.state = EngineState.FAILED
    async with asyncio.timeout(20):
        await answer(world.engine, make_request("all lack it", [9], max_tokens=2, adapter="one"))
    assert first.asked[-1] == "all lack it", "one that is gone for good is none that has it"


async def test_one_that_cannot_start_ends_all() -> None:
    world = World(3, failing=2)
    with pytest.raises(EngineFailed, match="no memory"):
        await world.engine.start()
    assert world.engine.state is EngineState.FAILED
    assert {replica.state for replica in world.made} == {EngineState.STOPPED}


async def test_it_is_ready_as_long_as_one_is() -> None:
    world = World(2)
    await world.engine.start()
    world.made[0].state = EngineState.FAILED
    assert world.engine.state is EngineState.READY
    await answer(world.engine, make_request("a", [1, 2], max_tokens=2))
    assert world.made[1].asked == ["a"]
    world.made[1].state = EngineState.FAILED
    with pytest.raises(Unavailable, match="failed"):
        await answer(world.engine, make_request("b", [1, 2], max_tokens=2))


async def test_who_waits_when_it_stops_is_told() -> None:
    world = World(1, most_at_once=1)
    await world.engine.start()
    world.hold()
    first, second = asking(world, make_request("a", [1, 2], max_tokens=2), make_request("b", [1, 2], max_tokens=2))
    await asyncio.sleep(0.01)
    await world.engine.stop()
    with pytest.raises(Unavailable, match="stopped"):
        await second
    first.cancel()


async def test_who_waits_when_no_replica_can_serve_any_more_is_told() -> None:
    world = World(2, most_at_once=1)
    await world.engine.start()
    world.hold()
    tasks = asking(world, *(make_request(id, [1, 2], max_tokens=2) for id in "abcd"))
    await asyncio.sleep(0.01)
    for replica in world.made:
        replica.state = EngineState.FAILED
    async with asyncio.timeout(30):
        for waiting in tasks[2:]:
            with pytest.raises(Unavailable, match="failed"):
                await waiting
    for task in tasks[:2]:
        task.cancel()


async def test_a_replica_that_is_started_again_gets_requests_only_where_no_other_is_ready() -> None:
    world = World(2, most_at_once=1)
    await world.engine.start()
    first, second = world.made
    first.state = EngineState.RESTARTING
    world.hold()
    one, two, three = asking(world, *(make_request(id, [at], max_tokens=2) for at, id in enumerate("abc")))
    await asyncio.sleep(0.01)
    assert (first.asked, second.asked) == ([], ["a"]), "b waits for the one that is ready"
    world.release()
    await asyncio.gather(one, two, three)
    assert second.asked == ["a", "b", "c"]
    second.state = EngineState.RESTARTING
    waits = asyncio.create_task(world.engine._free_seat(make_request("d")))
    assert (await waits).engine in (first, second), "both will be"


async def test_a_replica_that_becomes_ready_serves_who_waits_in_order() -> None:
    world = World(2, most_at_once=1)
    await world.engine.start()
    first, second = world.made
    first.state = EngineState.RESTARTING
    second.gate.clear()
    tasks = asking(world, *(make_request(id, [at], max_tokens=2) for at, id in enumerate("abcd")))
    await asyncio.sleep(0.01)
    first.state = EngineState.READY
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks[1:])
    assert (first.asked, second.asked) == (["b", "c", "d"], ["a"])
    second.gate.set()
    await tasks[0]


async def test_who_waits_past_the_deadline_is_told_so() -> None:
    world = World(1, most_at_once=1)
    await world.engine.start()
    world.hold()
    first, second = asking(
        world,
        make_request("a", [1, 2], max_tokens=2),
        make_request("b", [1, 2], max_tokens=2, deadline=time.monotonic() + 0.05),
    )
    outputs = await second
    assert [output.finish_reason for output in outputs] == [FinishReason.DEADLINE]
    world.release()
    await first
    assert world.made[0].asked == ["a"]


@dataclass(eq=False)
class Seat:
    in_flight: int = 0


def prompt(*token_ids: int, adapter: str = "", cache_salt: str = "") -> Request:
    return Request("any", token_ids, SamplingParams(max_tokens=1), adapter=adapter, cache_salt=cache_salt)


@pytest.mark.parametrize("system", [0, 1, BLOCK, 300, 1000])
@pytest.mark.parametrize("turn", [BLOCK, 40, 500])
def test_each_turn_goes_where_the_last_one_went(system: int, turn: int) -> None:
    """Whatever its length is, and however long the beginning is that it shares with other chats."""
    router, seats = PrefixRouter[Seat](), [Seat(), Seat(), Seat()]
    shared = range(system)
    chats = {number: [*shared, *range(10_000 * number, 10_000 * number + turn)] for number in range(1, 7)}
    homes = {}
    for number, tokens in chats.items():
        homes[number] = router.place(prompt(*tokens), seats)
        homes[number].in_flight += 1
    for seat in seats:
        seat.in_flight = 0
    for round_ in range(4):
        for number, tokens in chats.items():
            tokens += range(10_000 * number + 1000 * round_, 10_000 * number + 1000 * round_ + turn)
            assert router.place(prompt(*tokens), seats) is homes[number]


def test_fresh_chats_spread_once_all_have_had_the_beginning_that_they_share() -> None:
    router, seats = PrefixRouter[Seat](), [Seat(), Seat(), Seat()]
    for number in range(60):
        router.place(prompt(*range(100), *range(1000 * number, 1000 * number + 50)), seats).in_flight += 1
        counts = sorted(seat.in_flight for seat in seats)
        assert counts[-1] - counts[0] <= (1 if counts[0] > 1 else 100 // BLOCK // BLOCKS_A_REQUEST + 1)


@pytest.mark.parametrize("blocks", [2, 8, MOST_BLOCKS, 20 * MOST_BLOCKS])
def test_a_beginning_weighs_as_much_as_requests_in_flight(blocks: int) -> None:
    """Up to 16 requests; then another engine computes it too, and is as good as the first one."""
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    tokens = range(blocks * BLOCK)
    home = router.place(prompt(*tokens), seats)
    home.in_flight = min(blocks, MOST_BLOCKS) // BLOCKS_A_REQUEST
    assert router.place(prompt(*tokens), seats) is home
    home.in_flight += 1
    other = router.place(prompt(*tokens), seats)
    assert other is not home
    home.in_flight = 0
    assert router.place(prompt(*tokens), seats) is home, "both know it"
    other.in_flight = home.in_flight = 3
    router.place(prompt(*tokens, *range(40)), [other])
    assert router.place(prompt(*tokens, *range(80)), seats) is other, "which has had more of it"


def test_less_than_a_block_is_no_beginning() -> None:
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    for count, returns in ((BLOCK - 1, False), (BLOCK, True)):
        home = router.place(prompt(*range(count, 2 * count)), seats)
        home.in_flight += 1
        assert (router.place(prompt(*range(count, 2 * count)), seats) is home) == returns


@pytest.mark.parametrize("other", [prompt(*range(64), adapter="other"), prompt(*range(64), cache_salt="other")])
def test_adapters_and_salts_share_nothing(other: Request) -> None:
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    home = router.place(prompt(*range(64)), seats)
    home.in_flight = 1
    assert router.place(other, seats) is not home


def test_one_that_is_not_free_gets_nothing() -> None:
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    home = router.place(prompt(*range(64)), seats)
    rest = [seat for seat in seats if seat is not home]
    assert router.place(prompt(*range(64)), rest) is rest[0]


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_router, "MOST_REMEMBERED", 8)
    router, seats = PrefixRouter[Seat](), [Seat(), Seat()]
    kept = prompt(*range(BLOCK))
    others = (prompt(*range(1000 * number, 1000 * number + BLOCK)) for number in range(1, 100))
    router.place(kept, seats[1:])
    for _ in range(12):
        router.place(next(others), seats[:1])
        assert router.place(kept, seats) is seats[1], "asked again, so new again"
    for _ in range(8):
        router.place(next(others), seats[:1])
    assert router.place(kept, seats) is seats[0]
    assert len(router._known) == 8
