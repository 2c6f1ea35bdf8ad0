"""The live figures by a clock of the test: windows, rates, and counters that begin again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from service.deployments.deployments import Deployments
from service.engine.client.engine import Engine
from service.engine.protocol.messages import EngineStats, StepRecord
from service.observability.live.figures import MOST_STEPS, Figures
from service.observability.metrics import Metrics
from tests.fake_service import ScriptedEngine, serving
from tests.fakes import FakeClock


@dataclass
class Served:
    figures: Figures
    clock: FakeClock
    engine: ScriptedEngine
    metrics: Metrics

    def after(self, seconds: float = 1.0) -> dict[str, Any]:
        """The figures of the one version, so much later."""
        self.clock.advance(seconds)
        sample: Any = self.figures.sample()
        assert (sample["at"], sample["interval_seconds"]) == (1700000000.123, seconds)
        [version] = sample["versions"]
        return dict(version)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as world:
        clock = FakeClock(100.0)
        deployments: Deployments = world.deployments
        figures = Figures(deployments, world.metrics, clock, lambda: 1700000000.1234)
        world.engine.stats = replace(world.engine.stats, steps_total=50, prefill_tokens_total=900)
        figures.begin()
        yield Served(figures, clock, world.engine, world.metrics)


def records(*numbers: int) -> list[StepRecord]:
    return [StepRecord(number, 1, number / 10, number / 5) for number in numbers]


async def test_figures_are_of_the_time_since_the_sample_before(served: Served) -> None:
    shown = served.after()
    assert (shown["model"], shown["state"], shown["steps"]) == ("demo:1", "ready", [])
    assert (shown["tokens_per_second"], shown["prompt_tokens_per_second"]) == (0, 0), "not the totals of before"
    stats = served.engine.stats
    served.engine.stats = replace(
        stats, running=2, waiting=1, steps_total=52, prefill_tokens_total=1000, cost=(0.1, 0.2, 0.3, 0.4)
    )
    served.engine.recent_steps.extend(records(1, 2, 3))
    recent = served.metrics.model("demo", "1")
    recent.handed_out(101.0, 1, 0.5, None)
    recent.handed_out(101.5, 1, None, 0.01)
    recent.handed_out(102.0, 1, None, 0.03)
    shown = served.after(2.0)
    assert (shown["running"], shown["waiting"]) == (2, 1)
    assert (shown["tokens_per_second"], shown["prompt_tokens_per_second"]) == (1.5, 50.0)
    assert shown["steps"] == [
        {"tokens": number, "sequences": 1, "predicted_seconds": number / 10, "seconds": number / 5} for number in (2, 3)
    ]
    assert shown["ttft_seconds"] == {"p50": 0.5, "p95": 0.5, "count": 1}
    assert shown["itl_seconds"] == {"p50": 0.01, "p95": 0.03, "count": 2}
    assert shown["cost"]["seconds_per_kv_token"] == 0.3
    shown = served.after()
    assert (shown["tokens_per_second"], shown["steps"], shown["itl_seconds"]["count"]) == (0, [], 2)
    assert served.after(60.0)["itl_seconds"]["count"] == 0


async def test_prefix_hits_are_of_the_window(served: Served) -> None:
    stats = served.engine.stats
    for queried, hit in ((100, 60), (150, 60)):
        served.engine.stats = replace(stats, prefix_queried_tokens_total=queried, prefix_hit_tokens_total=hit)
        shown = served.after(30.0)
    assert shown["prefix_hits"] == {"cached_tokens": 60, "prompt_tokens": 150}
    assert served.after(30.0)["prefix_hits"] == {"cached_tokens": 0, "prompt_tokens": 50}


async def test_counters_that_begin_again_are_no_negative_rates(served: Served) -> None:
    served.engine.stats = EngineStats(steps_total=3, prefill_tokens_total=20)
    served.engine.recent_steps.extend(records(*range(9)))
    shown = served.after()
    assert (shown["prompt_tokens_per_second"], len(shown["steps"])) == (20, 3)
    served.engine.stats = EngineStats()
    assert served.after()["kv_blocks"] == {"total": 0, "free": 0, "cached": 0}


async def test_replicas_are_counted_one_by_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins again takes nothing from the others."""
    first, second = (ScriptedEngine(served.engine.tokenizer) for _ in range(2))
    replicas: list[Engine] = [first]
    monkeypatch.setattr(ScriptedEngine, "replicas", property(lambda self: tuple(replicas)))
    first.stats = EngineStats(steps_total=90, prefill_tokens_total=500)
    served.after()
    replicas.append(second)
    first.stats, second.stats = EngineStats(steps_total=1, prefill_tokens_total=10), EngineStats(40, steps_total=40)
    first.recent_steps.extend(records(1))
    second.recent_steps.extend(records(*range(32)))
    shown = served.after()
    assert (shown["prompt_tokens_per_second"], len(shown["steps"])) == (10, MOST_STEPS)


async def test_nothing_is_kept_without_a_listener(served: Served) -> None:
    model = served.metrics.model("demo", "1")
    assert model.recent is not None and served.metrics.model("demo", "2").recent is not None
    served.figures.end()
    assert model.recent is None and served.metrics.model("demo", "3").recent is None
    model.handed_out(0.0, 1, None, 0.1)
