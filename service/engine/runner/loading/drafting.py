"""The configuration of an engine's draft model. It is loaded like any model, with as many KV blocks as the model that
it makes drafts for.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from service.engine.kv_cache.kv_size import LayerShape
from service.engine.protocol.config import EngineConfig
from service.engine.runner.kv_cache import bytes_per_block, kv_dtype
from service.engine.runner.loading import findings


def draft_config(config: EngineConfig, num_blocks: int) -> EngineConfig | None:
    """Returns the configuration that loads the draft model of `config`; None if it has none."""
    draft = config.draft
    if draft is None:
        return None
    return msgspec.structs.replace(
        config,
        model_dir=draft.model_dir,
        precision=draft.precision,
        dtype=draft.dtype,
        max_model_len=draft.max_model_len,
        findings=draft.findings,
        kv_cache_blocks=num_blocks,
        decoder_start=(),
        draft=None,
        share_weights=False,
        packed_weights="",
        adapters=(),
    )


def draft_block_bytes(config: EngineConfig) -> int:
    """Returns the bytes that the draft model's keys and values add to a block; 0 without one. Raises InvalidSource for
    a configuration that cannot be built."""
    own = draft_config(config, 0)
    if own is None:
        return 0
    return bytes_per_block(_shapes(own), own.block_size, kv_dtype(own))


def _shapes(config: EngineConfig) -> tuple[LayerShape, ...]:
    """Returns the shapes of an earlier load, or of the model's configuration."""
    known = findings.read(config)
    if known is not None:
        return known.reference.shapes
    from models.weights.skeleton import build  # the library is imported only where no findings are

    skeleton = build(Path(config.model_dir))
    return (LayerShape(skeleton.kv_heads, skeleton.head_dim, skeleton.head_dim),) * skeleton.kv_layers
