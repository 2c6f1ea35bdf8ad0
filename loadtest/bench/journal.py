"""The journal records a run: one line of JSON for every (system, work, round), so that a stopped run can continue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Record:
    """`figures` is empty where `error` says why. `commit` and `at` tell which code, and when."""

    system: str
    work: str
    round: int
    figures: Mapping[str, float]
    commit: str
    at: str
    error: str = ""


class Journal:
    """Appends to `path`. A later record of the same (system, work, round) replaces the earlier."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[tuple[str, str, int], Record] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._keep(Record(**json.loads(line)))

    def _keep(self, record: Record) -> None:
        self._records[record.system, record.work, record.round] = record

    def add(self, record: Record) -> None:
        self._keep(record)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def holds(self, system: str, work: str, round_: int) -> bool:
        """True where that round was measured; one that failed is tried again."""
        record = self._records.get((system, work, round_))
        return record is not None and not record.error

    def forget(self, systems: set[str]) -> None:
        """Drop what was recorded of `systems`, from the file as well."""
        self._records = {key: record for key, record in self._records.items() if record.system not in systems}
        lines = [json.dumps(asdict(record)) + "\n" for record in self._records.values()]
        self._path.write_text("".join(lines), encoding="utf-8")

    @property
    def records(self) -> list[Record]:
        return list(self._records.values())

    def errors(self, system: str, work: str | None = None) -> list[str]:
        """Reasons of what could not be measured and was not measured in another round."""
        found = [record for record in self.records if record.system == system and work in (None, record.work)]
        measured = {record.work for record in found if not record.error}
        return [record.error for record in found if record.error and record.work not in measured]

    def figure(self, system: str, work: str, name: str) -> float | None:
        """The median over the rounds, None where there is none."""
        found = [
            record.figures[name]
            for record in self.records
            if record.system == system and record.work == work and name in record.figures
        ]
        return median(found) if found else None

    def rounds(self, system: str, work: str) -> int:
        return sum(record.system == system and record.work == work and not record.error for record in self.records)
