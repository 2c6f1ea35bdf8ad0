"""Wanted deployments are those that a caller loads by name: they stay until they are unloaded by name. Where instances
share records, each of them loads what one was asked for, and unloads it when one is asked to.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec
from msgspec.structs import replace

from models.manifest import Manifest
from models.repository.repository import Repository
from service.deployments.deployment import Deployment, DeploymentState
from service.deployments.engine_choice import DeploymentSpec, EngineChoice, Named, refuse_other
from service.deployments.following import RETRY_SECONDS, Following
from service.deployments.loaded_versions import LoadedVersions
from service.errors import DosirakError

DEPLOYMENTS: Final = "deployments"


class WantedDeployments:
    """The event loop owns it. Changes of shared records raise as `Repository.records` says."""

    def __init__(
        self, repository: Repository, loaded: LoadedVersions, following: Following, choice: EngineChoice
    ) -> None:
        self._repository = repository
        self._loaded = loaded
        self._following = following
        self._choice = choice
        self._followed: dict[str, DeploymentSpec] = {}

    async def begin_loading(self, manifest: Manifest, spec: DeploymentSpec) -> Deployment:
        """Begins to load a version, or returns its existing deployment. Raises Conflict where it, or another version of
        its base, is deployed otherwise, and the errors of EngineChoice.named."""
        named = await self._choice.named(manifest, spec)
        running = self._loaded.options_of(manifest)
        if running is not None:
            refuse_other(manifest, running, named)
        if not self._repository.records.shared:
            return self._begin_loading(manifest, named)
        present = self._loaded.get(manifest.reference)  # what is refused here is told to no other instance
        if present is None or present.state is DeploymentState.FAILED:
            self._choice.options(manifest, named)
        elif present.state is DeploymentState.DRAINING:
            return self._begin_loading(manifest, named)
        shared = spec if named.draft is None else replace(spec, draft=named.draft.reference)
        await asyncio.to_thread(self._put, manifest, shared)
        deployment = self._begin_loading(manifest, named)
        self._followed[manifest.reference] = shared
        return deployment

    async def unload(self, deployment: Deployment) -> None:
        """Begins to drain a deployment, on all instances."""
        if self._repository.records.shared:
            await asyncio.to_thread(self._put, deployment.manifest, None)
        self._following.unload(deployment, by_name=True)

    async def follow(self) -> None:
        """Loads and unloads what another instance was asked to. A load that failed is tried again; one that goes on is
        unloaded when it has ended."""
        if not self._repository.records.shared:
            return
        specs = self._all()
        gone = [reference for reference in self._followed if reference not in specs]
        for reference, each in specs.items():
            if self._followed.get(reference) != each or self._has_failed(reference):
                with contextlib.suppress(DosirakError):  # its files are on their way
                    manifest = self._choice.resolve(reference)
                    self._begin_loading(manifest, await self._choice.named(manifest, each))
                    self._followed[reference] = each
        for reference in gone:
            deployment = self._loaded.get(reference)
            if deployment is not None and deployment.state is DeploymentState.LOADING:
                continue
            del self._followed[reference]
            if deployment is not None and deployment.state is not DeploymentState.DRAINING:
                self._following.unload(deployment, by_name=True)

    def _has_failed(self, reference: str) -> bool:
        deployment = self._loaded.get(reference)
        return deployment is not None and deployment.failed_for(RETRY_SECONDS)

    def _begin_loading(self, manifest: Manifest, named: Named) -> Deployment:
        deployment = self._loaded.begin_loading(manifest, lambda: self._choice.options(manifest, named))
        deployment.pinned = True
        return deployment

    def _put(self, manifest: Manifest, spec: DeploymentSpec | None) -> None:
        """Records for every instance how a version is to be deployed; None: no longer."""
        records, document = self._repository.records, f"{manifest.name}/{manifest.version}"
        if spec is None and records.document(DEPLOYMENTS, document) is None:
            return
        with self._repository.locked(manifest.name):
            content = None if spec is None else msgspec.json.encode(spec)
            records.put_document(DEPLOYMENTS, document, content)

    def _all(self) -> dict[str, DeploymentSpec]:
        specs = {}
        records = self._repository.records
        for document in records.documents(DEPLOYMENTS):
            if (content := records.document(DEPLOYMENTS, document)) is not None:
                specs[document.replace("/", ":")] = msgspec.json.decode(content, type=DeploymentSpec)
        return specs
