"""The app, built when its process starts to serve.

`bentoml serve` loads the service's module in two processes, in the first only to read its configuration: there nothing
of the app is wanted, and importing it takes over a second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from service.engine.process import WORKER, Started
from service.settings import Settings, engine_environment


class DeferredApp(Starlette):
    """A Starlette application, so that BentoML runs its lifespan; it hands everything to the app that this makes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(lifespan=self._live)
        self._settings = settings

    @property
    def is_ready(self) -> bool:
        """See `Service.is_ready`; only while the lifespan runs."""
        return bool(self._app.state.service.is_ready)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _live(self, _: Starlette) -> AsyncIterator[None]:
        """The first engine's process imports its libraries while this one imports the app."""
        first = Started.of(WORKER, engine_environment()) if self._settings.preload else None
        from service.app import create

        self._app = create(self._settings, first)
        self.router.routes = self._app.router.routes  # BentoML hands on what one of them matches
        async with self._app.router.lifespan_context(self._app):
            yield
