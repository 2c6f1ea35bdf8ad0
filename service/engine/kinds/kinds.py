"""The kinds of engines that can serve a version, what each guarantees, and what each refuses by name.

`dosirak` is our own engine. `vllm` is vLLM in a worker process of its own interpreter, behind the same frames. This
module knows names, numbers and manifests; it starts no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from models import __version__
from models.manifest import Manifest
from service.addresses import SETTING
from service.engine.kinds.options import DOSIRAK, MP, RAY, VLLM, resolved
from service.engine.vllm.releases import installed, refusal
from service.errors import Conflict, InvalidRequest, UnsupportedField

KINDS: Final = (DOSIRAK, VLLM)
VLLM_WORKER: Final = "service.engine.vllm.worker"
VLLM_BYTES: Final = 2_500_000_000
"""What a process of vLLM takes beside weights and cache: its libraries, and its compiled code."""
RANK_BYTES: Final = 1_000_000_000
"""The same of each further process, where a host has several ranks."""
_VLLM_PRECISIONS: Final = ("bf16", "fp32", "int8")
_TRANSPOSED: Final = "gpt2"
"""vLLM transposes this family's weights when it loads them; our int8 versions have them transposed already."""
_ROOT: Final = Path(__file__).parents[3]


RAY_ON_CPU: Final = "current platform cpu does not support ray."
_ADAPTERS: Final = 4
"""Room for adapters where the version that is loaded first has one."""
_GUARANTEES: Final[Mapping[str, Mapping[str, bool | str]]] = MappingProxyType(
    {
        DOSIRAK: {"batch_invariant": True, "replay": "exact", "seed": "any_batch"},
        VLLM: {"batch_invariant": False, "replay": "greedy", "seed": "alone"},
    }
)


@dataclass(frozen=True, slots=True)
class EngineKind:
    """The engine that serves a version, and its resolved options."""

    name: str = DOSIRAK
    options: Mapping[str, int] = field(default_factory=dict)
    executor: str = MP

    @property
    def ranks(self) -> int:
        """Returns the processes that share the model."""
        return self.options.get("tensor_parallel", 1) * self.options.get("pipeline_parallel", 1)

    @property
    def nodes(self) -> int:
        """Returns the hosts that they run on, this one included."""
        return self.options.get("nodes", 1)

    @property
    def local_ranks(self) -> int:
        return self.ranks // self.nodes

    @property
    def leaves_host(self) -> bool:
        """Returns whether its ranks talk over a network."""
        return self.nodes > 1 or self.executor == RAY

    @property
    def guarantees(self) -> Mapping[str, bool | str]:
        """Returns what holds of answers: whether they are the same in any batch, which ones go on exactly after the
        death of an engine process, and in which batches a seed gives the same tokens again."""
        return _GUARANTEES[self.name]

    @property
    def own_bytes(self) -> int:
        """Returns the memory that the engine takes beside weights and cache, more than our own does."""
        if self.name != VLLM:
            return 0
        return VLLM_BYTES + (self.local_ranks * RANK_BYTES if self.ranks > 1 else 0)

    def shown(self, version: str) -> dict[str, object]:
        """Returns `engine` of a deployment; `version` is that of the loaded engine, if it says one."""
        return {"name": self.name, "version": self.version(version), "guarantees": dict(self.guarantees)}

    def version(self, reported: str) -> str | None:
        """Returns the engine's version: what the loaded engine says, else this project's for our own engine."""
        return reported or (__version__ if self.name == DOSIRAK else None)

    def of(self, manifest: Manifest) -> EngineKind:
        """Returns the kind with room for adapters, if the version has one."""
        if self.name != VLLM or not manifest.has_adapter or self.options.get("max_loras"):
            return self
        return replace(self, options={**self.options, "max_loras": _ADAPTERS})


def kind_of(name: str, options: Mapping[str, int | str] | None) -> EngineKind:
    """Returns the engine of this name with these options. Raises InvalidRequest, which names what there is, and
    UnsupportedField for options that do not go together."""
    if name not in KINDS:
        raise InvalidRequest(f"There is no engine {name[:40]!r}; there are: {', '.join(KINDS)}", param="engine")
    return EngineKind(name, *resolved(name, options or {}))


def require_place(kind: EngineKind, trusted_network: str | None, *, has_gpu: bool) -> None:
    """Raises UnsupportedField for Ray where there is no GPU, and Conflict for an engine whose ranks would talk over a
    network that nobody said is trusted."""
    if kind.executor == RAY and not has_gpu:
        raise UnsupportedField(
            f'vLLM refuses Ray on CPUs ("{RAY_ON_CPU}"): leave out `executor`, or set it to {MP}',
            param="engine_options",
        )
    if kind.leaves_host and trusted_network is None:
        raise Conflict(
            "vLLM's nodes send each other pickles in the clear, so whoever reaches their ports runs code: set "
            f"{SETTING} to the network of the nodes alone, as 10.1.0.0/16, on each of them",
            param="engine_options",
        )


def require_servable(kind: EngineKind, manifest: Manifest, *, has_encoder: bool, kv_cache_dtype: str) -> None:
    """Raises UnsupportedField for a version, or a setting, that the engine cannot serve."""
    if kind.name != VLLM:
        return
    instead = "load it with our own engine"
    if kind.nodes > 1 and manifest.has_adapter:
        raise UnsupportedField(
            f"{manifest.reference} is an adapter, and an engine of several nodes takes none: load it on one host",
            param="engine_options",
        )
    if has_encoder:
        raise UnsupportedField(f"{manifest.reference} has an encoder, and vLLM serves decoders here: {instead}")
    if manifest.precision not in _VLLM_PRECISIONS:
        raise UnsupportedField(
            f"{manifest.reference} is {manifest.precision}, and vLLM serves {', '.join(_VLLM_PRECISIONS)}: {instead}",
            param="engine",
        )
    if manifest.precision == "int8" and manifest.model_type == _TRANSPOSED:
        raise UnsupportedField(f"{manifest.reference} is an int8 version of GPT-2, which vLLM cannot read: {instead}")
    if manifest.has_hadamard:
        raise UnsupportedField(
            f"{manifest.reference} is int8 behind a Hadamard transform, which vLLM does not compute: load "
            f"{manifest.lineage.parent}, its bf16 parent, or {instead}",
            param="engine",
        )
    if kv_cache_dtype == "int8":
        raise UnsupportedField(
            "DOSIRAK_KV_CACHE_DTYPE=int8 acts on our own engine only: remove the setting, or load the version with it",
            param="engine",
        )


def vllm_python(configured: Path | None) -> Path:
    """Returns the interpreter that has vLLM: the `configured` one, or that of `make vllm`."""
    return configured or _ROOT / ".venv-vllm" / "bin" / "python"


def require_vllm(python: Path) -> None:
    """Raises Conflict, which says the command, where the interpreter has no vLLM, or one that was not tested. Starts a
    process: call it in a thread."""
    refused = refusal(installed(str(python)))
    if refused:
        raise Conflict(refused, param="engine")
