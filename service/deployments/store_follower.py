"""The store follower shows an instance what others publish, and prunes the store. It answers no request.

While the store is away its passes fail, which `dosirak_background_task_failures` tells, and versions stay as they were.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from models.repository.repository import Repository
from models.repository.store import pruning

REFRESH_STORE: Final = "refresh_store"
PRUNE_STORE: Final = "prune_store"
REFRESH_SECONDS: Final = 2.0
PRUNE_SECONDS: Final = 3600.0
log = structlog.get_logger(__name__)


class StoreFollower:
    """Two background tasks of a repository that has a store."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._logged: list[str] = []
        """What the last pass could not show; it is logged once."""

    async def refresh(self) -> None:
        """Looks once what the store has."""
        failed = await asyncio.to_thread(self._repository.refresh)
        for sentence in failed:
            if sentence not in self._logged:
                log.warning("version_not_shown", error=sentence)
        self._logged = failed

    async def prune(self) -> None:
        """Removes blobs of no version."""
        if self._repository.mirror is not None:
            freed = await asyncio.to_thread(pruning.prune, self._repository.mirror.store)
            log.info("store_pruned", bytes=freed)
