"""This module gives routes the composed service, which the composition root puts on `app.state.service`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Query, Request

from service.deployments.deployments import Deployments
from service.deployments.instances import Instances
from service.errors import Unavailable
from service.evaluation.jobs.jobs import Jobs
from service.generation.answers import Answers
from service.generation.batches.worker import BatchWorker
from service.observability.live.feed import Feed
from service.observability.metrics import Inventory, Metrics
from service.observability.profiles.profiles import Profiles
from service.settings import Settings
from service.storage.audit.writing import Audit
from service.storage.files.files import Files
from service.storage.keys import Keys
from service.storage.outages import Outages

if TYPE_CHECKING:
    from service.storage.sessions import SessionStore


@dataclass(frozen=True, slots=True)
class Service:
    settings: Settings
    deployments: Deployments
    jobs: Jobs
    answers: Answers
    files: Files
    batch_worker: BatchWorker
    metrics: Metrics
    stock: Callable[[], Inventory]
    """Reads what `/metrics` shows of this moment; it looks at files."""
    live: Feed
    profiles: Profiles
    instances: Instances
    version: str
    """The version of this software."""
    keys: Keys
    audit: Audit
    openapi: Callable[[], dict[str, Any]]
    """The document of the whole app, made once."""
    outages: Mapping[str, Outages]
    """What fails of each store."""

    @property
    def is_keyed(self) -> bool:
        """Returns whether callers must show a key."""
        return self.settings.admin_key is not None or self.keys.are_needed

    @property
    def is_ready(self) -> bool:
        """Returns whether the default model would answer at once, and neither database nor clock need an operator."""
        return self.deployments.ready and self.answers.conversations.unusable is None and self.instances.unfit is None

    @property
    def failing(self) -> list[str]:
        """Returns what of the stores fails, in sentences. Answers that need no store go on, so it is ready all the
        same."""
        return [sentence for each in self.outages.values() for sentence in each.sentences]

    async def store(self) -> SessionStore:
        """Returns the store of sessions, once it is open. Raises Unavailable."""
        return await self.answers.conversations.store()

    def require_ready(self) -> None:
        """Raises Unavailable, with the cause, where `is_ready` is false."""
        if (cause := self.answers.conversations.unusable or self.instances.unfit) is not None:
            raise Unavailable(cause, retry_after=2)
        if not self.deployments.ready:
            raise Unavailable(
                f"The default model is not ready ({self.deployments.why_not_ready}); try again", retry_after=2
            )


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _actor(request: Request) -> str:
    actor: str = request.state.actor
    return actor


async def _owner(request: Request) -> str:
    owner: str = request.state.owner
    return owner


async def _models(request: Request) -> frozenset[str] | None:
    models: frozenset[str] | None = request.state.models
    return models


ServiceDep = Annotated[Service, Depends(_service)]
ActorDep = Annotated[str, Depends(_actor)]
"""The caller, as histories and lineage name it (see `auth`)."""
OwnerDep = Annotated[str, Depends(_owner)]
"""The owner of sessions, identified by the whole key."""
ModelsDep = Annotated[frozenset[str] | None, Depends(_models)]
"""The models that answer the caller; None for all."""
Text = Annotated[str, Query(max_length=1024)]
Limit = Annotated[int, Query(ge=1, le=100)]
"""The most entries of a page."""
