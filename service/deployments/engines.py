"""How the engine process of a version is configured: a function of settings and manifest."""

from __future__ import annotations

from models.manifest import Manifest
from models.repository import Repository
from service.engine.messages import EngineConfig
from service.settings import Settings


def engine_config(
    settings: Settings, repository: Repository, manifest: Manifest, promised_bytes: int = 0
) -> EngineConfig:
    """What the engine process of `manifest` is started with, beside engines that may still take `promised_bytes`."""
    return EngineConfig(
        model_dir=str(repository.path(manifest)),
        precision=manifest.precision,
        dtype="fp32" if manifest.precision == "fp32" else "bf16",
        device=settings.device,
        threads=settings.threads,
        max_model_len=manifest.context_window,
        block_size=settings.block_size,
        kv_cache_bytes=settings.kv_cache_bytes,
        kv_cache_dtype=settings.kv_cache_dtype,
        promised_bytes=promised_bytes,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        inter_token_latency_target=settings.inter_token_latency_target_ms / 1000,
        prefix_caching=settings.prefix_caching,
        record=str(repository.engine_file(manifest, "record")),
    )
