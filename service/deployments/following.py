"""Following says which deployment answers for a reference that may mean another version later, as aliases move.

The new version loads beside the old one. The old one answers until the new one is ready, and goes on where the new one
cannot be loaded; else it finishes its requests and frees its memory. A rollout's candidate loads in the same way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

import structlog

from models.manifest import Manifest, ModelReference
from models.repository.rollouts import Rollout
from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.loaded_versions import LoadedVersions
from service.deployments.rollouts import Rollouts
from service.deployments.routing import Router
from service.errors import DosirakError, NotFound, Unavailable

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 60.0
"""The time between two tries to load an alias's version, while another version answers for it."""


class Following:
    """The event loop owns it."""

    def __init__(
        self,
        router: Router,
        loaded: LoadedVersions,
        rollouts: Rollouts,
        begin_loading: Callable[[Manifest], Deployment],
    ) -> None:
        """`begin_loading` raises DosirakError."""
        self._router = router
        self._loaded = loaded
        self._rollouts = rollouts
        self._begin_loading = begin_loading
        self._answering: dict[ModelReference, Deployment] = {}
        """By reference without a version: the deployment that answers until the reference's new version is ready."""
        self._refused: dict[ModelReference, tuple[str, str, float]] = {}
        """The version that a reference means now and whose load cannot begin; why, which is logged once; and when."""
        self._trials: set[str] = set()
        self._tried: set[tuple[str, str, str]] = set()
        """The rollouts whose candidates were begun to load: another rollout of a candidate that failed tries again."""
        self._unasked: dict[Deployment, ModelReference] = {}
        """The loads that no request began, until they have settled: for a reference that moved, or for a candidate
        under one."""

    def deployed(self, reference: ModelReference) -> Deployment | None:
        """Returns the deployment that answers for `reference`; None before it is loaded. Loads nothing. Raises
        DosirakError."""
        present = self._answering.get(reference)
        if present is not None and present.state is DeploymentState.READY:
            return present
        return self._loaded.get(self._router.resolve(reference).reference)

    def begin_loading(self, reference: ModelReference) -> Deployment:
        """Returns the deployment that now answers for a reference without a version. Begins to load the reference's
        target where that does not serve; where it does, drains the deployment before it. Raises DosirakError."""
        present = self._answering.get(reference)
        if present is not None and present.state is not DeploymentState.READY:
            present = None
        try:
            target = self._router.resolve(reference)
        except Unavailable:  # the version that the reference means now is damaged on disk
            if present is None:
                raise
            return present
        new = self._loaded.get(target.reference)
        if new is not None and new.state is DeploymentState.READY:
            self._switch(reference, new)
            return new
        if present is None:
            return self._begin_loading(target)
        if new is None or new.failed_for(RETRY_SECONDS):
            self._begin_swap(reference, target)
        return present

    def _begin_swap(self, reference: ModelReference, target: Manifest) -> None:
        """Begins to load what a reference means now, while another version answers for it: where this cannot begin, as
        where the engine serves no such version, that one goes on."""
        refused, why, since = self._refused.get(reference, ("", "", 0.0))
        if refused == target.reference and time.monotonic() - since < RETRY_SECONDS:
            return
        try:
            self._unasked[self._begin_loading(target)] = reference
            self._refused.pop(reference, None)
        except DosirakError as error:
            if (refused, why) != (target.reference, error.message):
                log.warning("version_not_served", model=target.reference, reference=str(reference), error=error.message)
            self._refused[reference] = target.reference, error.message, time.monotonic()

    def candidate(self, rollout: Rollout) -> Deployment | None:
        """Returns the candidate if it can answer now. Begins to load it, and rolls it back where it cannot be
        loaded."""
        candidate = self._loaded.get(rollout.reference)
        is_tried = (rollout.name, rollout.alias, rollout.started_at) in self._tried
        if candidate is None or (candidate.state is DeploymentState.FAILED and not is_tried):
            self._begin_trial(rollout)
            return None
        if candidate.state is DeploymentState.FAILED:
            self._rollouts.withdraw(rollout, f"it could not be loaded: {candidate.failure}")
        return candidate if candidate.state is DeploymentState.READY else None

    def _begin_trial(self, rollout: Rollout) -> None:
        try:
            target = self._router.resolve(rollout.reference)
        except DosirakError as error:
            if not self._rollouts.may_arrive(rollout):
                self._rollouts.withdraw(rollout, error.message)
            return
        self._tried.add((rollout.name, rollout.alias, rollout.started_at))
        try:
            self._unasked[self._begin_loading(target)] = ModelReference(rollout.name, alias=rollout.alias)
        except DosirakError as error:
            self._rollouts.withdraw(rollout, error.message)

    def load_moved(self) -> None:
        """Begins to load the versions that the references in use, and the rollouts, mean now. Where a version cannot be
        loaded, its deployment's state says so, and the present version goes on. A version that loaded for nothing,
        because its alias moved on or its rollout ended meanwhile, is unloaded. Raises OSError where the repository
        cannot be read."""
        for reference in tuple(self._answering):
            try:
                self.begin_loading(reference)
            except NotFound:  # it was removed
                self._retire(self._answering.pop(reference))
            except DosirakError:
                pass
        self._rollouts.refresh()
        trials = {rollout.reference for rollout in self._rollouts.all()}
        for rollout in self._rollouts.all():
            self.candidate(rollout)
        for ended in self._trials - trials:
            if (deployment := self._loaded.get(ended)) is not None:
                self._retire(deployment)
        self._trials = trials
        self._retire_overtaken()

    def is_on_trial(self, deployment: Deployment) -> bool:
        """Returns whether the deployment is the candidate of a rollout."""
        return any(rollout.reference == deployment.manifest.reference for rollout in self._rollouts.all())

    def unload(self, deployment: Deployment, by_name: bool = False) -> None:
        """Begins to drain a deployment, which answers for no reference from now on. `by_name`: a caller asked for
        it."""
        self._answering = {key: value for key, value in self._answering.items() if value is not deployment}
        self._loaded.begin_unloading(deployment, by_name)

    def _switch(self, reference: ModelReference, new: Deployment) -> None:
        before, self._answering[reference] = self._answering.get(reference), new
        if before is not None and before is not new:
            log.info(
                "reference_switched",
                reference=str(reference),
                model=new.manifest.reference,
                before=before.manifest.reference,
            )
            self._retire(before)

    def _retire_overtaken(self) -> None:
        """Drains the versions that loaded for nothing: their reference means another version by now."""
        for deployment, reference in tuple(self._unasked.items()):
            if deployment.state is not DeploymentState.LOADING:
                del self._unasked[deployment]
                if not self._means(reference, deployment):
                    self._retire(deployment)

    def _means(self, reference: ModelReference, deployment: Deployment) -> bool:
        with contextlib.suppress(DosirakError):
            return self._router.resolve(reference).reference == deployment.manifest.reference
        return False

    def _retire(self, deployment: Deployment) -> None:
        """Drains a deployment that no alias leads to any more, unless it was loaded by its own name."""
        if deployment.pinned or deployment in self._answering.values() or self.is_on_trial(deployment):
            return
        if deployment.state is DeploymentState.READY:
            self._unasked.pop(deployment, None)
            self._loaded.begin_unloading(deployment)
