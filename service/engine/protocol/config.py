"""The configuration is what an engine process is started with. It knows paths, sizes and names; no settings."""

from __future__ import annotations

from typing import Literal

import msgspec


class DraftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The version that makes drafts for another one. The fields are as in EngineConfig."""

    model_dir: str
    precision: str
    dtype: str
    max_model_len: int
    findings: str = ""


class NodesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the other hosts of an engine join it: at `port` of `address`, an address of this host in the trusted
    `network`. They have `wait_seconds` to come. `reference` names the version, `software` is this project's release."""

    address: str
    network: str
    port: int
    wait_seconds: float
    reference: str
    software: str


Preference = Literal["streams", "prompts"]
"""Who comes first in a step: those who read along, or those who wait for their first token."""
MIN_PREFILL_TOKENS = 8
"""Of a prompt in a step beside decodes: few enough for a slow machine, enough rows for a fast kernel."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine process needs to know. It is resolved already: nothing here reads the environment.

    `kv_cache_dtype` is "int8", or "auto" for the model's own. `kv_cache_bytes` 0 lets the engine choose from the memory
    that is free after the weights are loaded, less `promised_bytes`. `promised_bytes` is what other engines of this
    service may still take for their caches, whose pages come with use.
    `kv_cache_blocks` is the number of KV blocks; 0 chooses it by `kv_cache_bytes`. `draft` is the draft model, whose
    keys and values count in the bytes of a block.
    `max_model_len` counts the positions of one sequence. For an encoder-decoder model, whose decoder starts with
    `decoder_start`, it counts the encoder's input and the decoder together.
    `kv_offload_bytes` of disk in `offload_directory` keep blocks that memory has no room for; 0 keeps none.
    `spare_devices` get layers of a model that `device` does not hold.
    `findings` is the file that makes the next load of the same version shorter; "" is none. `share_weights` packs the
    weights into memory that other processes can map; `packed_weights` is where another process has done so.
    `peaks` is the file of this host's measured peaks; "" keeps none.
    `adapters` are (name, directory) of the adapters to load at once; `LoadAdapter` brings others. `heartbeat_seconds`
    lie between two Heartbeat frames. `digest` is the version's, for files that an engine writes of it. `options` are
    those of the deployment's engine, resolved; `executor` is how it starts several ranks.
    """

    model_dir: str
    precision: str
    dtype: str = "bf16"
    device: str = "auto"
    spare_devices: tuple[str, ...] = ()
    threads: int = 0
    max_model_len: int
    decoder_start: tuple[int, ...] = ()
    block_size: int = 16
    kv_cache_bytes: int = 0
    kv_cache_blocks: int = 0
    kv_cache_dtype: str = "auto"
    kv_offload_bytes: int = 0
    offload_directory: str = ""
    promised_bytes: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    inter_token_latency_target: float = 0.1
    prefer: Preference = "streams"
    prefix_caching: bool = True
    speculation: bool = True
    draft: DraftConfig | None = None
    findings: str = ""
    peaks: str = ""
    share_weights: bool = False
    packed_weights: str = ""
    adapters: tuple[tuple[str, str], ...] = ()
    heartbeat_seconds: float = 1.0
    digest: str = ""
    options: dict[str, int] = {}
    executor: str = "mp"
    nodes: NodesConfig | None = None

    @property
    def step_tokens(self) -> int:
        """The most tokens of a step: the configured number, or the least prefill beside a full batch if that is
        more."""
        return max(self.max_num_batched_tokens, self.max_num_seqs + MIN_PREFILL_TOKENS)
