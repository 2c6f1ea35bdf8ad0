"""This module makes the engine configuration of a version from settings and manifest, and says what process runs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from models import __version__
from models.checkpoint.decoder_start import decoder_start
from models.manifest import Manifest
from models.repository.repository import Repository
from service.addresses import LOOPBACK, place_in
from service.deployments.engine_options import DEFAULT_OPTIONS, EngineOptions
from service.engine.client.process import WORKER
from service.engine.kinds.environment import threads_of_one, vllm_environment
from service.engine.kinds.kinds import VLLM_WORKER, EngineKind, vllm_python
from service.engine.kinds.options import VLLM
from service.engine.protocol.config import DraftConfig, EngineConfig, NodesConfig
from service.environment import engine_environment
from service.host import usable_cores, usable_cpus
from service.settings import Settings

PEAKS: Final = "peaks.json"
"""In the data directory: what engines measured of this host."""


def engine_config(
    settings: Settings,
    repository: Repository,
    manifest: Manifest,
    promised_bytes: int = 0,
    options: EngineOptions = DEFAULT_OPTIONS,
) -> EngineConfig:
    """Returns the configuration of an engine process for `manifest`, beside engines that may still take
    `promised_bytes`; `options` are those of one replica. Several replicas share their packed weights."""
    replicas = options.replicas
    directory = repository.path(manifest)
    start, window = decoder_start(directory), options.window(manifest)
    return EngineConfig(
        model_dir=str(directory),
        precision=manifest.precision,
        dtype=_dtype(manifest),
        device=options.devices[0] if options.devices else settings.first_device,
        spare_devices=options.devices[1:],
        threads=settings.threads or (max(1, usable_cores() // replicas) if replicas > 1 else 0),
        max_model_len=window if not start else _with_encoder(settings, window),
        decoder_start=start,
        block_size=settings.block_size,
        kv_cache_bytes=settings.kv_cache_bytes,
        kv_cache_dtype=settings.kv_cache_dtype,
        kv_offload_bytes=settings.kv_offload_bytes,
        offload_directory=str(settings.data_dir),
        promised_bytes=promised_bytes,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        inter_token_latency_target=settings.inter_token_latency_target_ms / 1000,
        prefer=settings.prefer,
        prefix_caching=settings.prefix_caching,
        share_weights=replicas > 1,
        adapters=((manifest.digest, str(repository.path(manifest))),) if manifest.has_adapter else (),
        peaks=str(settings.data_dir / PEAKS),
        findings=str(repository.findings_path(manifest)),
        draft=None if options.draft is None else _draft(repository, options.draft, options),
        digest=manifest.digest,
        options=dict(options.kind.of(manifest).options),
        executor=options.kind.executor,
        nodes=_nodes(settings, manifest) if options.kind.nodes > 1 else None,
    )


@dataclass(frozen=True, slots=True)
class Worker:
    """The process of an engine: `interpreter -m module`, in an environment."""

    module: str
    interpreter: str
    env: Mapping[str, str]


def worker_of(settings: Settings, kind: EngineKind, threads: int = 0) -> Worker:
    """Returns the process of an engine of this kind; `threads` as in EngineConfig."""
    if kind.name == VLLM:
        cores = usable_cpus()[: threads or None]
        place = place_in(settings.trusted_network) if kind.leaves_host and settings.trusted_network else LOOPBACK
        python, env = vllm_python(settings.vllm_python), engine_environment()
        if kind.ranks == 1:
            env |= threads_of_one(env, cores, python)
        env = vllm_environment(env, settings.data_dir, kind.local_ranks, cores, place)
        return Worker(VLLM_WORKER, str(python), env)
    return Worker(WORKER, sys.executable, engine_environment())


def _nodes(settings: Settings, manifest: Manifest) -> NodesConfig:
    """Returns where the other hosts join. Raises Conflict where this host is not in the trusted network."""
    network = settings.trusted_network or LOOPBACK.address
    return NodesConfig(
        address=place_in(network).address,
        network=network,
        port=settings.node_port,
        wait_seconds=settings.node_wait_seconds,
        reference=manifest.reference,
        software=__version__,
    )


def _draft(repository: Repository, manifest: Manifest, options: EngineOptions) -> DraftConfig:
    return DraftConfig(
        model_dir=str(repository.path(manifest)),
        precision=manifest.precision,
        dtype=_dtype(manifest),
        max_model_len=options.window(manifest),
        findings=str(repository.findings_path(manifest)),
    )


def _dtype(manifest: Manifest) -> str:
    return "fp32" if manifest.precision == "fp32" else "bf16"


def _with_encoder(settings: Settings, window: int) -> int:
    """Returns the positions of a full encoder's input, in whole blocks, plus those of the decoder."""
    return window + -(-window // settings.block_size) * settings.block_size
