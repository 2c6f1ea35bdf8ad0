"""The refs are the commits that branches and tags of the hub were when they were last fetched.

One small file for each repository lies in `data_dir/hub`, so that the same words find the same version with no network.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from models.imports.hub.source import HubSource
from models.repository.disk import durable


class Refs:
    """The refs of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / "hub"

    def commit(self, source: HubSource) -> str | None:
        """Returns the commit of the source's revision; None where it was never fetched. A damaged file counts as
        none."""
        return source.revision if source.is_commit else self._read(source).get(source.revision)

    def put(self, source: HubSource, commit: str) -> None:
        """Records what the revision is. A commit needs no record."""
        if source.is_commit or self._read(source).get(source.revision) == commit:
            return
        durable.make_directory(self._directory)
        with durable.locked(self._directory / f"{source.slug}.lock", 10):
            known = self._read(source) | {source.revision: commit}
            durable.replace(self._path(source), msgspec.json.encode(known))

    def _path(self, source: HubSource) -> Path:
        return self._directory / f"{source.slug}.json"

    def _read(self, source: HubSource) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path(source).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return {}
