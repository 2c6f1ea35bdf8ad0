"""The choice of what serves a version: number of replicas, draft version and engine, by a caller or by the settings.

It refuses, by name, what cannot be. What makes drafts for a version must read and write the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from models.checkpoint.decoder_start import decoder_start
from models.manifest import Manifest
from models.repository.repository import Repository
from service.deployments.engine_options import EngineOptions
from service.engine.kinds.kinds import EngineKind, kind_of, require_place, require_servable, require_vllm
from service.engine.kinds.options import DOSIRAK, VLLM
from service.errors import Conflict, DosirakError, InvalidRequest, UnsupportedField
from service.host import has_gpu
from service.text.files import read_files
from service.text.vocabulary import Vocabulary


class DeploymentSpec(msgspec.Struct, frozen=True):
    """How a caller wants a version to be deployed, in words; None is as the settings say."""

    replicas: int | None = None
    draft: str | None = None
    engine: str | None = None
    engine_options: Mapping[str, int | str] | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """What these words name."""

    replicas: int | None = None
    draft: Manifest | None = None
    kind: EngineKind | None = None
    max_model_len: int | None = None


NOTHING_NAMED: Final = Named()


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

    def require(self, options: EngineOptions, manifest: Manifest, repository: Repository) -> None:
        """Raises UnsupportedField for what the engine cannot serve."""
        kind = options.kind
        if kind.name == DOSIRAK:
            return
        has_encoder = bool(decoder_start(repository.path(manifest)))
        require_servable(kind, manifest, has_encoder=has_encoder, kv_cache_dtype=self._kv_cache_dtype)
        if kind.nodes > 1 and options.replicas > 1:
            raise UnsupportedField(
                f"{manifest.reference} cannot have {options.replicas} replicas of several nodes each: set `replicas` "
                "to 1",
                param="replicas",
            )
        if options.draft is not None:
            raise UnsupportedField(
                f"The engine {kind.name} takes no draft model: remove `draft`, or load {manifest.reference} with our "
                "own engine",
                param="draft",
            )


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Makes the options of engines. `resolve` returns the version of a reference, or raises DosirakError. `replicas`
    (None: one on each device) and `draft` are those of the versions of `default_name`; `max_model_len` is of all."""

    resolve: Callable[[str], Manifest]
    repository: Repository
    kinds: Kinds
    default_name: str
    replicas: int | None
    devices: tuple[str, ...]
    draft: str | None
    max_model_len: int = 0

    async def named(self, manifest: Manifest, spec: DeploymentSpec) -> Named:
        """Returns what a caller names for `manifest`. Raises DosirakError."""
        if (spec.max_model_len or 0) > manifest.context_window:
            raise InvalidRequest(
                f"`max_model_len` is {spec.max_model_len:,}, and {manifest.reference} has "
                f"{manifest.context_window:,} positions: give no more, or leave it out",
                param="max_model_len",
            )
        draft = None if spec.draft is None else self._resolved(spec.draft)
        if draft is not None:
            _require_draft(manifest, draft)
        kind = await self.kinds.named(spec.engine, spec.engine_options)
        return Named(spec.replicas, draft, kind, spec.max_model_len)

    def options(self, manifest: Manifest, named: Named) -> EngineOptions:
        """Returns the options of a version's engine. Versions of the default model get its replicas and draft version,
        whichever alias or swap leads to them. Raises DosirakError for what the engine cannot serve."""
        kind = named.kind or self.kinds.default
        replicas, draft = named.replicas or 1, named.draft
        if manifest.name == self.default_name:
            draft = named.draft or self.default_draft(manifest)
            replicas = named.replicas or self.default_replicas(kind)
        options = EngineOptions(replicas, draft, kind, max_model_len=named.max_model_len or self.max_model_len)
        self.kinds.require(options, manifest, self.repository)
        return options

    def default_draft(self, manifest: Manifest) -> Manifest | None:
        """Returns the default draft version; None for the version that is it. Raises DosirakError."""
        draft = None if self.draft is None else self._resolved(self.draft)
        if draft is None or draft == manifest:
            return None
        _require_draft(manifest, draft)
        return draft

    def default_replicas(self, kind: EngineKind) -> int:
        """Returns the default model's number of replicas where a request names none."""
        if self.replicas is not None:
            return self.replicas
        return len(self.devices) if kind.name == DOSIRAK else 1

    def _resolved(self, reference: str) -> Manifest:
        try:
            return self.resolve(reference)
        except DosirakError as error:
            error.param = "draft"
            raise


def refuse_other(manifest: Manifest, running: EngineOptions, named: Named) -> None:
    """Raises Conflict where the version, or another one of its base, runs otherwise than a caller names."""
    deployed = f"{manifest.reference}, or another version of its base, is deployed"
    if named.replicas not in (None, running.replicas):
        raise Conflict(f"{deployed} with {running.replicas} replicas: unload it first")
    if named.draft not in (None, running.draft):
        drafter = f"draft model {running.drafted_by}" if running.draft else "no draft model"
        raise Conflict(f"{deployed} with {drafter}: unload it first", param="draft")
    if named.max_model_len is not None and named.max_model_len != running.window(manifest):
        raise Conflict(
            f"{deployed} with {running.window(manifest):,} positions: unload it first", param="max_model_len"
        )
    if named.kind not in (None, running.kind):
        options = " and other options" if named.kind.name == running.kind.name else ""
        raise Conflict(f"{deployed} with the engine {running.kind.name}{options}: unload it first", param="engine")


def _require_draft(manifest: Manifest, draft: Manifest) -> None:
    """Raises InvalidRequest for a version that cannot make drafts for `manifest`, as far as manifests say."""
    if draft.digest == manifest.digest:
        raise InvalidRequest(
            f"{manifest.reference} cannot make drafts for itself; name a smaller version", param="draft"
        )
    if draft.has_adapter:
        raise InvalidRequest(f"{draft.reference} is an adapter; name a version with weights of its own", param="draft")


def require_same_tokens(manifest: Manifest, draft: Manifest, directory: Path, draft_directory: Path) -> None:
    """Raises InvalidRequest unless both versions have the same token for each id that both have. One of them may have
    more, as the sizes of one family do. The directories hold the versions' files."""
    if decoder_start(directory) or decoder_start(draft_directory):
        raise InvalidRequest("an encoder-decoder model neither makes drafts nor gets them", param="draft")
    ours, theirs = (Vocabulary(read_files(each)).token_ids for each in (directory, draft_directory))
    texts = {id: text for text, id in theirs.items()}
    for text, id in ours.items():
        if id in texts and texts[id] != text:
            raise InvalidRequest(
                f"{draft.reference} has other tokens than {manifest.reference}: token {id} is {texts[id][:40]!r} there "
                f"and {text[:40]!r} here; name a version with the same tokenizer",
                param="draft",
            )
