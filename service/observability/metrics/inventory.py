"""The inventory holds what is true at the moment of a scrape: deployments, aliases, rollouts, promotions, free disk. It
is read then, and not kept up to date in between. The module knows no repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from service.observability.metrics.families import MODEL, PREFIX

Family = CounterMetricFamily | GaugeMetricFamily
KINDS: Final = ("promote", "rollback", "remove")


@dataclass(frozen=True, slots=True)
class Served:
    """One deployed version, whatever its state."""

    model: str
    version: str
    digest: str
    quantization: str
    dtype: str
    context_length: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """One reading. `deployments` counts versions by state, `promotions` moves of aliases by kind. `observed` are the
    (model, version) that answers or engine steps are recorded for. `aliases` are (model, version, alias); `canaries`
    are (model, version, alias, percent of the conversations that the version gets as a rollout's candidate); `broken`
    are (model, version, alias with a gate, limits that the version breaks); `silent` are (model, version, seconds
    without a word of an engine process). None of `free_bytes`: the data directory cannot be looked at; of
    `records_reachable`: this server shares no records."""

    deployments: Mapping[str, int] = field(default_factory=dict)
    served: tuple[Served, ...] = ()
    observed: frozenset[tuple[str, str]] = frozenset()
    aliases: tuple[tuple[str, str, str], ...] = ()
    canaries: tuple[tuple[str, str, str, float], ...] = ()
    broken: tuple[tuple[str, str, str, int], ...] = ()
    silent: tuple[tuple[str, str, float], ...] = ()
    promotions: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    free_bytes: int | None = None
    records_reachable: bool | None = None
    clock_ahead: float = 0.0


class InventoryCollector(Collector):
    """Gives the last reading in Prometheus' terms."""

    def __init__(self) -> None:
        self.newest = Inventory()

    def collect(self) -> Iterator[Family]:
        known = self.newest
        states = [((state,), count) for state, count in known.deployments.items()]
        yield _gauge("deployments", "Deployed versions, by state.", ("state",), states)
        yield _gauge(
            "model_info",
            "Always 1; its labels describe a deployed version.",
            (*MODEL, "digest", "quantization", "dtype", "context_length"),
            [(_labels(each), 1) for each in known.served],
        )
        yield _gauge(
            "alias_info",
            "Always 1; the version that an alias points to.",
            (*MODEL, "alias"),
            [(alias, 1) for alias in known.aliases],
        )
        yield _gauge(
            "canary_weight",
            "Percent of an alias's conversations that a rollout gives the version as candidate.",
            (*MODEL, "alias"),
            [(labels, weight) for *labels, weight in known.canaries],
        )
        yield _gauge(
            "gate_broken_limits",
            "Limits of an alias's gate that the version which it points to breaks.",
            (*MODEL, "alias"),
            [(labels, count) for *labels, count in known.broken],
        )
        yield _gauge(
            "engine_silent_seconds",
            "Longest silence of an engine process.",
            MODEL,
            [(labels, seconds) for *labels, seconds in known.silent],
        )
        moves = CounterMetricFamily(PREFIX + "promotions", "Moves of aliases, in all histories.", labels=("kind",))
        for kind, count in known.promotions.items():
            moves.add_metric((kind,), count)
        yield moves
        free = GaugeMetricFamily(PREFIX + "data_dir_free_bytes", "Free bytes of the data directory's file system.")
        if known.free_bytes is not None:
            free.add_metric((), known.free_bytes)
        yield free
        yield from _shared(known)


def _shared(known: Inventory) -> Iterator[GaugeMetricFamily]:
    reach = GaugeMetricFamily(PREFIX + "shared_records_reachable", "1 while the shared records can be had, else 0.")
    ahead = GaugeMetricFamily(PREFIX + "clock_ahead_seconds", "Least seconds that this clock is before the database's.")
    if known.records_reachable is not None:
        reach.add_metric((), known.records_reachable)
        ahead.add_metric((), known.clock_ahead)
    yield reach
    yield ahead


def _labels(served: Served) -> tuple[str, ...]:
    length = str(served.context_length)
    return served.model, served.version, served.digest, served.quantization, served.dtype, length


def _gauge(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
