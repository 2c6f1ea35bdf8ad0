"""The field is the set of candidates, each one choice of the settings that tuning varies: precision x batch limits x
threads x replicas. It is arithmetic; it measures nothing.

A limit that the load never reaches chooses nothing. So of all values that are at least the load's reach there is one:

    values   2   4   8 │ 16  32  64 ...        reach: 11 sequences at once
             lower ◀───┘  └─▶ one: the present one if it is among them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from models.errors import NotFound
from models.manifest import Manifest
from models.repository.lineage import ancestors
from models.repository.repository import Repository
from service.host import usable_cores
from service.settings import MAX_REPLICAS, PREFIX, Settings

LEAST_SEQS: Final = 2
LEAST_TOKENS: Final = 64
SEQS_RATIO: Final = 2
TOKENS_RATIO: Final = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """`reference` is an exact version. The limits are those of each of `replicas` engine processes, as the settings'
    are."""

    reference: str
    precision: str
    max_num_seqs: int
    max_num_batched_tokens: int
    threads: int
    replicas: int

    def applied(self, settings: Settings) -> Settings:
        """Returns `settings` with what the candidate chooses, but for the version."""
        return settings.model_copy(
            update={
                "max_num_seqs": self.max_num_seqs,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "threads": self.threads,
                "replicas": self.replicas,
            }
        )

    def variables(self, words: str, resolved: str) -> dict[str, str]:
        """Returns the variables that make a server like this candidate. `words` name the model as its operator did, and
        mean `resolved`: they stay where that version is chosen, so that its alias can still move."""
        model = words if self.reference == resolved else self.reference
        return {
            f"{PREFIX}DEFAULT_MODEL": model,
            f"{PREFIX}MAX_NUM_SEQS": str(self.max_num_seqs),
            f"{PREFIX}MAX_NUM_BATCHED_TOKENS": str(self.max_num_batched_tokens),
            f"{PREFIX}THREADS": str(self.threads),
            f"{PREFIX}REPLICAS": str(self.replicas),
        }

    def __str__(self) -> str:
        return (
            f"{self.reference} {self.precision}, {self.max_num_seqs} sequences, {self.max_num_batched_tokens} tokens, "
            f"{self.replicas} x {self.threads} threads"
        )


def present(settings: Settings, manifest: Manifest) -> Candidate:
    """Returns what a server with `settings` would run."""
    return Candidate(
        manifest.reference,
        manifest.precision,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        settings.threads or max(1, usable_cores() // settings.replicas),
        settings.replicas,
    )


@dataclass(frozen=True, slots=True)
class Grain:
    """How fine a field is: the number of lower values of each limit."""

    name: str
    seqs: int
    tokens: int


GRAINS: Final = (Grain("fine", 2, 2), Grain("middle", 1, 1), Grain("coarse", 1, 0), Grain("bare", 0, 0))
"""The finest first. The last one has precision, threads and replicas alone: they matter most
(loadtest/results/log.md)."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The most that a load has in one step: sequences, and tokens of their prompts."""

    seqs: int
    tokens: int


def field(
    present: Candidate, versions: list[Manifest], reach: Reach, grain: Grain, cores: int | None
) -> list[Candidate]:
    """Returns the candidates, the present one first. `cores` is None where engines run on a GPU: then threads and
    replicas stay as they are."""
    candidates = [
        Candidate(version.reference, version.precision, seqs, tokens, threads, replicas)
        for version in versions
        for threads, replicas in shapes(present, cores)
        for seqs in ladder(present.max_num_seqs, reach.seqs, LEAST_SEQS, SEQS_RATIO, grain.seqs)
        for tokens in ladder(present.max_num_batched_tokens, reach.tokens, LEAST_TOKENS, TOKENS_RATIO, grain.tokens)
    ]
    return list(dict.fromkeys([present, *candidates]))


def ladder(present: int, reach: int, least: int, ratio: int, steps: int) -> list[int]:
    """Returns values of a limit: the highest first, which never binds, then at most `steps` that do, and the present
    one."""
    top = least
    while top < reach:
        top *= 2
    lower = [top // ratio**step for step in range(1, steps + 1)]
    unbound = present if present >= reach else top
    values = [unbound, *(value for value in lower if least <= value < reach), present]
    return list(dict.fromkeys(values))


def shapes(present: Candidate, cores: int | None) -> list[tuple[int, int]]:
    """Returns pairs of threads and replicas that use all cores, or half of them: the API process needs some too."""
    pairs = [(present.threads, present.replicas)]
    for used in () if cores is None else (cores, *((cores // 2,) if cores > 1 else ())):
        replicas = 1
        while replicas <= min(used, MAX_REPLICAS):
            pairs.append((used // replicas, replicas))
            replicas *= 2
    return list(dict.fromkeys(pairs))


def family(repository: Repository, manifest: Manifest) -> list[Manifest]:
    """Returns the version and its conversions: those of the same weights in other precisions, with the newest of each
    precision. A version with an adapter has none."""
    if manifest.has_adapter:
        return [manifest]
    known = {each.reference: each for each in repository.versions(manifest.name)}
    root = _root(manifest, known)
    found = {manifest.precision: manifest}
    for each in reversed(list(known.values())):
        if not each.has_adapter and _root(each, known) == root:
            found.setdefault(each.precision, each)
    return list(found.values())


def _root(manifest: Manifest, known: dict[str, Manifest]) -> str:
    """Returns the digest of the version that all conversions go back to, also where that one is deleted."""

    def find(reference: str) -> Manifest:
        if reference not in known:
            raise NotFound(f"There is no {reference}")
        return known[reference]

    for older in ancestors(manifest, find):
        if not manifest.is_conversion:
            break
        manifest = older
    return (manifest.lineage.parent_digest or "") if manifest.is_conversion else manifest.digest
