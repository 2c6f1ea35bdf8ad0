"""The copies of versions that vLLM reads, in the data directory: of 8-bit weights and of adapters, in vLLM's form. They
go with the version that they were made of."""

from __future__ import annotations

import shutil

from models.repository.disk.listing import matching
from models.repository.repository import Repository

KINDS = ("versions", "adapters")


def sweep(repository: Repository) -> None:
    """Removes the copies of versions that are gone. A copy that is removed too early is made again at the next load."""
    home = repository.layout.data_dir / "engines" / "vllm"
    copies = [copy for kind in KINDS for copy in matching(home / kind, "*")]
    known = {each.digest for name in repository.models() for each in repository.versions(name)} if copies else set()
    for copy in copies:
        if copy.name.partition(".")[0] not in known:  # behind a dot: the process that writes it
            shutil.rmtree(copy, ignore_errors=True)
