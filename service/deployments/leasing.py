"""Leasing takes a version's lease without a wait of the event loop: shared records may take a second for it."""

from __future__ import annotations

import asyncio

from models.manifest import Manifest
from models.repository.disk.leases import Lease
from models.repository.repository import Repository


async def leased(repository: Repository, manifest: Manifest) -> Lease:
    """Does as `Repository.lease`, in a thread. A lease that comes after its caller was cancelled is released."""
    taking = asyncio.create_task(asyncio.to_thread(repository.lease, manifest))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_release)
        raise


def _release(taking: asyncio.Task[Lease]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().release()
