"""The default model is what a request without a model means. It is kept loaded, and the server is ready with it."""

from __future__ import annotations

import contextlib
from typing import Final

from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.engine_choice import NOTHING_NAMED, EngineChoice
from service.deployments.following import RETRY_SECONDS, Following
from service.deployments.loaded_versions import LoadedVersions
from service.deployments.routing import Router
from service.errors import DosirakError

_FIRST_RETRY_SECONDS: Final = 1.0
"""The time before its load is tried again; it doubles up to `RETRY_SECONDS`."""


class DefaultModel:
    """The event loop owns it."""

    def __init__(self, router: Router, loaded: LoadedVersions, following: Following, choice: EngineChoice) -> None:
        self._router = router
        self._loaded = loaded
        self._following = following
        self._choice = choice
        self._retry_seconds = _FIRST_RETRY_SECONDS

    def deployed(self) -> Deployment | None:
        """Returns its deployment; None before it is loaded. Raises DosirakError."""
        return self._following.deployed(self._router.parse(None))

    def is_served(self, by_loading: bool) -> bool:
        """Returns whether a request for it would be served now: at once, or `by_loading` it first."""
        try:
            deployment = self.deployed()
        except DosirakError:
            return False
        if deployment is None or deployment.state is DeploymentState.LOADING:
            return by_loading
        return deployment.is_serving

    @property
    def failure(self) -> str:
        """Returns a clause that says why it cannot be served; empty where nothing is known."""
        with contextlib.suppress(DosirakError):
            deployment = self.deployed()
            if deployment is not None and deployment.cause:
                return deployment.cause
            manifest = self._router.resolve(None)
            try:
                self._choice.options(manifest, NOTHING_NAMED)
            except DosirakError as error:
                return f"no draft model: {error.message}" if error.param == "draft" else error.message
        return ""

    def retry(self) -> None:
        """Loads it if it is missing or if its load has failed: a server that is not ready gets no request that would
        load it. Where a caller has unloaded it, it stays unloaded until a request wants it."""
        with contextlib.suppress(DosirakError):
            deployment, manifest = self.deployed(), self._router.resolve(None)
            if deployment is not None and deployment.is_serving:
                self._retry_seconds = _FIRST_RETRY_SECONDS
            is_missing = deployment is None and not self._loaded.was_unloaded(manifest.reference)
            if is_missing or (deployment is not None and deployment.failed_for(self._retry_seconds)):
                self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS)
                self._loaded.begin_loading(manifest, lambda: self._choice.options(manifest, NOTHING_NAMED))
