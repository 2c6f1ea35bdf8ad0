"""The choice of the engine that serves a version: by a request's name and options, or by the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from models.checkpoint.decoder_start import decoder_start
from models.manifest import Manifest
from models.repository.repository import Repository
from service.engine.kinds.kinds import EngineKind, kind_of, require_place, require_servable, require_vllm
from service.engine.kinds.options import DOSIRAK, VLLM
from service.errors import UnsupportedField
from service.host import has_gpu


class Kinds:
    """Chooses kinds of engines and refuses, by name, what a kind cannot serve."""

    def __init__(
        self,
        default: str = DOSIRAK,
        vllm_python: Path | None = None,
        kv_cache_dtype: str = "auto",
        trusted_network: str | None = None,
    ) -> None:
        """`default` names the engine of versions that are loaded without naming one. The nodes of an engine talk over
        the `trusted_network`."""
        self.default = kind_of(default, None)
        self._python = vllm_python
        self._kv_cache_dtype = kv_cache_dtype
        self._trusted_network = trusted_network

    async def named(self, name: str | None, options: Mapping[str, int | str] | None) -> EngineKind | None:
        """Returns the engine that a request asks for; None where it asks for none. Raises InvalidRequest for names and
        options that there are not or that cannot be here, and Conflict for an engine that is not installed, or whose
        nodes would talk over a network that is not trusted."""
        if name is None and options is None:
            return None
        kind = kind_of(self.default.name if name is None else name, options)
        require_place(kind, self._trusted_network, has_gpu=has_gpu())
        if kind.name == VLLM and self._python is not None:
            await asyncio.to_thread(require_vllm, self._python)
        return kind

    def require(
        self,
        kind: EngineKind,
        manifest: Manifest,
        repository: Repository,
        draft: Manifest | None = None,
        replicas: int = 1,
    ) -> None:
        """Raises UnsupportedField for what the engine cannot serve."""
        if kind.name == DOSIRAK:
            return
        has_encoder = bool(decoder_start(repository.path(manifest)))
        require_servable(kind, manifest, has_encoder=has_encoder, kv_cache_dtype=self._kv_cache_dtype)
        if kind.nodes > 1 and replicas > 1:
            raise UnsupportedField(
                f"{manifest.reference} cannot have {replicas} replicas of several nodes each: set `replicas` to 1",
                param="replicas",
            )
        if draft is not None:
            raise UnsupportedField(
                f"The engine {kind.name} takes no draft model: remove `draft`, or load {manifest.reference} with our "
                "own engine",
                param="draft",
            )
