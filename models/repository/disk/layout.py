"""The layout says where each part of a repository lies on disk. It knows paths only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.manifest import ModelReference
from models.repository.disk import durable


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of a repository, drawn in `models.repository.repository`."""

    data_dir: Path

    def make(self) -> None:
        """Create what is missing."""
        for directory in (self.models, self.journals, self.reports, self.blobs, self.temporary, self.locks):
            durable.make_directory(directory)

    @property
    def models(self) -> Path:
        return self.data_dir / "models"

    @property
    def journals(self) -> Path:
        return self.data_dir / "journal"

    @property
    def reports(self) -> Path:
        return self.data_dir / "reports"

    @property
    def blobs(self) -> Path:
        return self.data_dir / "blobs"

    @property
    def engine(self) -> Path:
        return self.data_dir / "engine"

    @property
    def profiles(self) -> Path:
        return self.data_dir / "profiles"

    @property
    def temporary(self) -> Path:
        return self.data_dir / "tmp"

    @property
    def locks(self) -> Path:
        return self.data_dir / "locks"

    def version(self, reference: ModelReference) -> Path:
        return self.models / reference.name / (reference.version or "")

    def report(self, name: str, version: str) -> Path:
        return self.reports / name / f"{version}.json"

    def profiles_of(self, name: str, version: str) -> Path:
        return self.profiles / name / version

    def journal(self, name: str) -> Path:
        return self.journals / f"{ModelReference(name).name}.jsonl"

    def publications(self, name: str) -> Path:
        return self.data_dir / "published" / ModelReference(name).name

    def lock(self, name: str) -> Path:
        return self.locks / f"{ModelReference(name).name}.lock"
