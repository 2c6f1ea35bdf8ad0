"""The inventory is read here when a scrape asks: deployments, aliases, rollouts and promotions from the repository, and
the disk. It looks at files; any thread may call it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from models.errors import RepositoryError, Unreachable
from models.manifest import QUANTIZED, Manifest
from models.repository.repository import Repository
from models.repository.standing import Gate, standings
from service.deployments.deployment import DeploymentState
from service.deployments.deployments import Deployments
from service.observability.metrics import KINDS, Inventory, Served
from service.storage.records import SharedRecords


def take_stock(deployments: Deployments, data_dir: Path, gate: Gate) -> Inventory:
    """Returns what is true now. `gate` has the limits of an alias. A model whose journal is damaged is left out, and
    every model while the shared records were never read here; other routes say so."""
    repository, deployed = deployments.repository, deployments.all()
    models = _models(repository)
    records = repository.records
    states = Counter(each.shown_state.value for each in deployed)
    aliases = tuple(_aliases(repository, models))
    running = {(each.name, each.alias): each for each in deployments.rollouts.all()}
    trials = ((each.name, each.candidate, each.alias, each.weight) for each in running.values())
    return Inventory(
        deployments={state.value: states[state.value] for state in DeploymentState},
        served=tuple(_served(each.manifest, each.window) for each in deployed),
        observed=frozenset((each.name, each.version) for each in deployments.observed()),
        aliases=aliases,
        canaries=(*((*alias, 0.0) for alias in aliases), *trials),
        broken=tuple(
            (each.name, each.version, each.alias, len(each.broken)) for each in standings(repository, gate, models)
        ),
        silent=tuple((each.manifest.name, each.manifest.version, each.engine.silent_seconds) for each in deployed),
        promotions=_promotions(repository, models),
        free_bytes=_free_bytes(data_dir),
        records_reachable=records.is_reachable if isinstance(records, SharedRecords) else None,
        clock_ahead=records.clock_seconds if isinstance(records, SharedRecords) else 0.0,
    )


def _models(repository: Repository) -> list[str]:
    try:
        return repository.models()
    except Unreachable:
        return []


def _aliases(repository: Repository, models: list[str]) -> Iterator[tuple[str, str, str]]:
    for name in models:
        with suppress(RepositoryError):
            yield from ((name, version, alias) for alias, version in sorted(repository.aliases(name).items()))


def _promotions(repository: Repository, models: list[str]) -> dict[str, int]:
    """Counts the moves of all aliases, whichever process made them."""
    counts = dict.fromkeys(KINDS, 0)
    for name in models:
        with suppress(RepositoryError):
            for kind, count in repository.moves(name).items():
                counts[kind] += count
    return counts


def _served(manifest: Manifest, window: int) -> Served:
    return Served(
        manifest.name,
        manifest.version,
        manifest.short_digest,
        manifest.precision if manifest.precision in QUANTIZED else "none",
        manifest.dtype.lower(),
        window,
    )


def _free_bytes(data_dir: Path) -> int | None:
    try:
        return shutil.disk_usage(data_dir).free
    except OSError:
        return None
