"""A standing says how a gated alias stands now: which limits the version that it points to breaks. A report that is
made after a promotion may break limits that nothing showed before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from models.errors import RepositoryError
from models.repository.gate import Limits
from models.repository.repository import Repository

Gate = Callable[[str], Limits | None]
"""Returns the limits of an alias; None for one without a gate."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`broken` has a phrase for each limit that `version` breaks; it is empty where all is well."""

    name: str
    alias: str
    version: str
    broken: tuple[str, ...]

    @property
    def sentence(self) -> str:
        where, broken = f"{self.name}@{self.alias}", "; ".join(self.broken)
        return f"{where} is {self.name}:{self.version}, which breaks its gate: {broken}"


def standings(repository: Repository, gate: Gate, names: Iterable[str] | None = None) -> Iterator[Standing]:
    """Yields how every gated alias stands, of all models or of `names`. What is damaged is left out; other commands say
    so."""
    for name in repository.models() if names is None else names:
        with suppress(RepositoryError):
            for alias, version in sorted(repository.aliases(name).items()):
                if limits := gate(alias):
                    broken = repository.broken_limits(repository.get(name, version), alias, limits)
                    yield Standing(name, alias, version, broken)
