"""The kinds of engines that can serve a version, what each guarantees, and what each refuses by name.

`dosirak` is our own engine. `vllm` is vLLM in a worker process of its own interpreter, behind the same frames. This
module knows names, numbers and manifests; it starts no engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from models import __version__
from models.manifest import Manifest
from service.engines.vllm.releases import installed, refusal
from service.errors import Conflict, InvalidRequest, UnsupportedField
from service.host import has_gpu, usable_cores

DOSIRAK: Final = "dosirak"
VLLM: Final = "vllm"
KINDS: Final = (DOSIRAK, VLLM)
VLLM_WORKER: Final = "service.engines.vllm.worker"
VLLM_BYTES: Final = 2_500_000_000
"""What a process of vLLM takes beside weights and cache: its libraries, and its compiled code."""
_VLLM_PRECISIONS: Final = ("bf16", "fp32", "int8")
_TRANSPOSED: Final = "gpt2"
"""vLLM transposes this family's weights when it loads them; our int8 versions have them transposed already."""
_ROOT: Final = Path(__file__).parents[2]


class Option(NamedTuple):
    """The least, the most and the default of an engine's option."""

    least: int
    most: int
    default: int


OPTIONS: Final[Mapping[str, Mapping[str, Option]]] = MappingProxyType(
    {
        DOSIRAK: {},
        VLLM: {
            "tensor_parallel": Option(1, 64, 1),
            "pipeline_parallel": Option(1, 64, 1),
            "enforce_eager": Option(0, 1, 0),
            "max_loras": Option(0, 64, 0),
            "max_lora_rank": Option(1, 512, 64),
        },
    }
)
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM can be started for."""
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

    @property
    def guarantees(self) -> Mapping[str, bool | str]:
        """Returns what holds of answers: whether they are the same in any batch, which ones go on exactly after the
        death of an engine process, and in which batches a seed gives the same tokens again."""
        return _GUARANTEES[self.name]

    @property
    def own_bytes(self) -> int:
        """Returns the memory that the engine takes beside weights and cache, more than our own does."""
        return VLLM_BYTES if self.name == VLLM else 0

    def shown(self, version: str) -> dict[str, object]:
        """Returns `engine` of a deployment; `version` is that of the loaded engine, if it says one."""
        own = __version__ if self.name == DOSIRAK else None
        return {"name": self.name, "version": version or own, "guarantees": dict(self.guarantees)}

    def of(self, manifest: Manifest) -> EngineKind:
        """Returns the kind with room for adapters, if the version has one."""
        if self.name != VLLM or not manifest.has_adapter or self.options.get("max_loras"):
            return self
        return EngineKind(self.name, {**self.options, "max_loras": _ADAPTERS})


def kind_of(name: str, options: Mapping[str, int] | None) -> EngineKind:
    """Returns the engine of this name with these options. Raises InvalidRequest, which names what there is."""
    if name not in KINDS:
        raise InvalidRequest(f"There is no engine {name[:40]!r}; there are: {', '.join(KINDS)}", param="engine")
    known = OPTIONS[name]
    for option, value in (options or {}).items():
        limit = known.get(option)
        if limit is None:
            there = f"there are: {', '.join(known)}" if known else "it has none"
            raise InvalidRequest(f"The engine {name} has no option {option[:40]!r}; {there}", param="engine_options")
        if not limit.least <= value <= limit.most:
            raise InvalidRequest(
                f"`engine_options.{option}` is {value}; it must be from {limit.least} to {limit.most}",
                param="engine_options",
            )
    resolved = {**{option: limit.default for option, limit in known.items()}, **(options or {})}
    if (rank := resolved.get("max_lora_rank", 1)) not in _RANKS:
        raise InvalidRequest(
            f"`engine_options.max_lora_rank` is {rank}; vLLM takes {', '.join(map(str, _RANKS))}",
            param="engine_options",
        )
    return EngineKind(name, resolved)


def require_servable(kind: EngineKind, manifest: Manifest, *, has_encoder: bool, kv_cache_dtype: str) -> None:
    """Raises UnsupportedField for a version, or a setting, that the engine cannot serve."""
    if kind.name != VLLM:
        return
    instead = "load it with our own engine"
    if has_encoder:
        raise UnsupportedField(f"{manifest.reference} has an encoder, and vLLM serves decoders here: {instead}")
    if manifest.precision not in _VLLM_PRECISIONS:
        raise UnsupportedField(
            f"{manifest.reference} is {manifest.precision}, and vLLM serves {', '.join(_VLLM_PRECISIONS)}: {instead}",
            param="engine",
        )
    if manifest.precision == "int8" and manifest.model_type == _TRANSPOSED:
        raise UnsupportedField(f"{manifest.reference} is an int8 version of GPT-2, which vLLM cannot read: {instead}")
    if kv_cache_dtype == "int8":
        raise UnsupportedField(
            "DOSIRAK_KV_CACHE_DTYPE=int8 acts on our own engine only: remove the setting, or load the version with it",
            param="engine",
        )


def vllm_python(given: Path | None) -> Path:
    """Returns the interpreter that has vLLM: the given one, or that of `make vllm`."""
    return given or _ROOT / ".venv-vllm" / "bin" / "python"


def require_vllm(python: Path) -> None:
    """Raises Conflict, which says the command, where the interpreter has no vLLM, or one that was not tested. Starts a
    process: call it in a thread."""
    refused = refusal(installed(str(python)))
    if refused:
        raise Conflict(refused, param="engine")


def vllm_environment(
    given: Mapping[str, str], data_dir: Path, kind: EngineKind, cores: Sequence[int], python: Path
) -> dict[str, str]:
    """Returns the environment of a vLLM worker that `python` runs. Its PYTHONPATH is a directory that has this
    project's `service` alone: the libraries beside it are those of another interpreter. vLLM gets its core in that
    process, sends no reports to its makers, looks at no model hub, keeps its compiled code in the data directory, and
    on a CPU divides the `cores` among its ranks."""
    home = data_dir / "engines" / "vllm"
    ranks = kind.options.get("tensor_parallel", 1) * kind.options.get("pipeline_parallel", 1)
    share = max(1, len(cores) // ranks)
    bound = [cores[rank * share % len(cores) :][:share] for rank in range(ranks)]
    return {
        "VLLM_LOGGING_LEVEL": "WARNING",
        **given,
        "PYTHONPATH": str(_library(home / "lib")),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(home / "cache"),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, each)) for each in bound),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        **(_threads_of_one(given, cores, python) if ranks == 1 else {}),
    }


def _threads_of_one(given: Mapping[str, str], cores: Sequence[int], python: Path) -> dict[str, str]:
    """Returns what vLLM sets for ranks that it starts as processes, and cannot set for a core in its own: the number of
    OpenMP threads; and where they have every core of the host, one on each, which takes one OpenMP library for all."""
    threads = {"OMP_NUM_THREADS": str(len(cores))}
    libraries = sorted(python.parent.parent.glob("lib/python*/site-packages/torch/lib/libgomp*.so*"))
    if has_gpu() or not libraries or len(cores) < usable_cores():
        return threads  # of several replicas each has a part of the cores, and all would sit on the same ones
    preloads = [each for each in (given.get("LD_PRELOAD"), str(libraries[0])) if each]
    return {**threads, "LD_PRELOAD": ":".join(preloads), "GOMP_CPU_AFFINITY": " ".join(map(str, cores))}


def _library(library: Path) -> Path:
    """Returns a directory with a link to this project's `service`; makes it where it is missing or old."""
    library.mkdir(parents=True, exist_ok=True)
    link, ours = library / "service", _ROOT / "service"
    if not link.is_symlink() or link.readlink() != ours:
        fresh = library / f"service.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(ours)
        fresh.replace(link)
    return library
