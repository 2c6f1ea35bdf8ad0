"""The builder makes a runner: from the findings of an earlier load if there are some, else through the library's model.

findings ▶ names and numbers ─▶ weights mapped by name ─▶ our forward ─▶ the recorded logits? ─yes▶ runner
   │none                                                                    │no
   └──▶ library's model ─▶ its logits on a short prompt ─▶ the first way that repeats them ─▶ runner, and findings
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from msgspec import structs
from torch import Tensor

from models.manifest import QUANTIZED
from models.weights.blocks import BLOCKS
from models.weights.int4 import INT4, decoded
from models.weights.loading import DTYPES, MappedWeights, load_model, resolve_device, weight_bytes
from service.engine.kv_cache.kv_size import Demand, KVBlocks, KVBytes, LayerShape, choose_blocks, window_of
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import EngineInfo
from service.engine.runner.block_linear import BlockLinear, coded_linear
from service.engine.runner.block_linear import release as release_blocks
from service.engine.runner.draft_model import DraftModel
from service.engine.runner.forwards.attention import KV_TILE, matmul_dtype
from service.engine.runner.forwards.blueprint import Blueprint, LibraryWeights, assemble
from service.engine.runner.forwards.cuda_graphs import GraphedDecoder
from service.engine.runner.forwards.decoder import FusedDecoder
from service.engine.runner.forwards.forward import CannotServe, Forward
from service.engine.runner.forwards.native_decoder import NativeDecoder
from service.engine.runner.forwards.step import RowRules
from service.engine.runner.kv_cache import KVCache, bytes_per_block, free_bytes, kv_dtype
from service.engine.runner.linear import (
    DenseLinear,
    Int8Linear,
    activation_reach,
    int8_kernel,
    release,
)
from service.engine.runner.loading import findings
from service.engine.runner.loading.division import RESERVED_BYTES, kv_room, num_devices
from service.engine.runner.loading.drafting import draft_block_bytes, draft_config
from service.engine.runner.loading.families import outline_of
from service.engine.runner.loading.grammar_tokens import begin_reading
from service.engine.runner.loading.lesson import observe_lesson, with_noises
from service.engine.runner.loading.model_work import model_work
from service.engine.runner.loading.probe import PROBE_TOLERANCE, Reference, choose_forward, observe, spread, verify
from service.engine.runner.loading.slow_path import slow_path
from service.engine.runner.model_runner import ModelRunner
from service.engine.runner.native.arena import Arena, Differs
from service.engine.runner.native.library import library
from service.engine.runner.native.linear import NativeLinear
from service.engine.runner.offload_file import OffloadFile
from service.engine.runner.peaks import peaks_of, products_dtype
from service.engine.runner.row_blocks import RowBlocks, bmm_row_quantum, divide_rows, row_blocks
from service.engine.runner.scoring import CHUNK
from service.host import usable_cores

if TYPE_CHECKING:
    import transformers

Progress = Callable[[str, float], None]
Built = tuple[Forward, KVCache, tuple[str, ...]]
"""The forward, its cache, and the reasons against the ways before it."""


def build_runner(config: EngineConfig, progress: Progress) -> tuple[ModelRunner, EngineInfo]:
    """Loads the model of `config.model_dir` and measures it. `progress` gets (phase, fraction of the whole). Raises
    OSError or ValueError for unusable files, CannotServe for an architecture that no forward fits, and MemoryError if
    not one KV block fits."""
    started = time.monotonic()
    torch.set_num_threads(config.threads or usable_cores())
    device, dtype = resolve_device(config.device), DTYPES[config.dtype]
    grammars = begin_reading(config.model_dir)
    progress("weights", 0.0)
    built, arena = _built(config, dtype, _devices(config, device), progress)
    forward, cache, passed_over = built
    rules = _row_rules(forward.model, cache, dtype)
    forward = _graphed(forward, cache, rules)
    progress("ready", 1.0)
    kernels = _kernels(config, forward, cache, rules) + passed_over
    runner = ModelRunner(forward, cache, rules, device, _offload(config, cache))
    for name, directory in config.adapters:
        runner.load_adapter(name, directory)
    runner.draft_model = _draft_model(config, runner, device, progress)
    read = grammars.result()
    runner.grammars = None if isinstance(read, str) else read.grammars(runner.vocab_size)
    info = _info(config, runner, kernels, started, arena)
    slow = slow_path(forward, cache, rules, passed_over, info.work, info.peaks)
    return runner, structs.replace(info, slow_path=slow, no_grammars=read if isinstance(read, str) else "")


def _devices(config: EngineConfig, device: torch.device) -> tuple[torch.device, ...]:
    """Returns the devices that get layers: one, unless it is a GPU that does not hold them."""
    if device.type != "cuda":
        return (device,)
    torch.cuda.set_device(device)
    devices = (device, *map(resolve_device, config.spare_devices))
    return devices[: num_devices(config, [free_bytes(each) for each in devices])]


def _draft_model(
    config: EngineConfig, runner: ModelRunner, device: torch.device, progress: Progress
) -> DraftModel | None:
    """Loads the draft model, if `config` has one. Raises CannotServe where its drafts could not be verified."""
    own = draft_config(config, runner.cache.num_blocks)
    if own is None:
        return None
    if not runner.verifies_drafts:
        raise CannotServe(
            "drafts cannot be verified: on this device, or by the library's forward, rows depend on others"
        )
    dtype = DTYPES[own.dtype]
    forward, cache, _ = _from_findings(own, dtype, device) or _from_library(own, dtype, (device,), progress)
    rules = _row_rules(forward.model, cache, dtype)
    return DraftModel(forward, cache, rules, runner.vocab_size, own.max_model_len)


def _built(
    config: EngineConfig, dtype: torch.dtype, devices: tuple[torch.device, ...], progress: Progress
) -> tuple[Built, Arena | None]:
    """Returns the built model, and the arena where other processes can map its packed weights, if it is shared."""
    kernels, device = library(), devices[0]
    if kernels is not None and device.type == "cpu" and (config.share_weights or config.packed_weights):
        with suppress(OSError, Differs):  # then the weights are packed alone
            arena = Arena(config.packed_weights)
            built = _from_findings(config, dtype, device, arena)
            if built is None:
                arena = Arena(config.packed_weights)  # the forward of the findings may have taken a part of it
                built = _from_library(config, dtype, devices, progress, arena)
            if arena.is_owner:
                arena.seal()
            return built, arena
    return _from_findings(config, dtype, device) or _from_library(config, dtype, devices, progress), None


def _from_findings(
    config: EngineConfig, dtype: torch.dtype, device: torch.device, arena: Arena | None = None
) -> Built | None:
    """Builds from findings, with weights packed in the `arena`, if one is given. Returns None if there are none, or
    if their lesson is not repeated."""
    kernels = library()
    if kernels is None or device.type != "cpu":
        return None
    known = findings.read(config)
    if known is None:
        return None
    try:
        reference = known.reference
        whole = assemble(known.outline, MappedWeights(config.model_dir, dtype, config.precision), config.max_model_len)
        cache = _make_cache(config, reference.shapes, [device] * len(reference.shapes))
        with kernels.packing_into(arena):
            forward = NativeDecoder(whole, cache)
        verify(forward, reference, cache, PROBE_TOLERANCE[_precision(config)], config.max_model_len)
    except (CannotServe, KeyError, ValueError, RuntimeError):
        return None
    return forward, cache, ()


def _from_library(
    config: EngineConfig,
    dtype: torch.dtype,
    devices: tuple[torch.device, ...],
    progress: Progress,
    arena: Arena | None = None,
) -> Built:
    """Builds through the library, with the chosen way's weights packed in the `arena`, if one is given."""
    from service.engine.runner.forwards.foreign import PackedForward, PerSequenceForward, pin_rope

    device, is_divided = devices[0], len(devices) > 1
    room = {each.index: free_bytes(each) - RESERVED_BYTES for each in devices} if is_divided else None
    model = load_model(config.model_dir, config.precision, dtype, device, coded_linear, room)
    pin_rope(model, config.max_model_len)
    progress("probe", 0.6)
    attention, precision, positions = model.config._attn_implementation, _precision(config), config.max_model_len
    reference = _with_lesson(observe(model, device), model, config)
    release(model, everything=arena is not None)
    release_blocks(model)
    cache = _make_cache(config, _with_windows(reference.shapes, model), reference.devices)
    progress("forward", 0.8)
    if model.config.is_encoder_decoder:
        way = _seq2seq(config, model, cache)
        forward, passed_over = choose_forward((way,), reference, cache, precision, positions)
        return forward, cache, passed_over
    own: tuple[Callable[[], Forward], ...] = (
        lambda: NativeDecoder(_apart(_blueprint(model, positions)), cache),
        lambda: FusedDecoder(_blueprint(model, positions)),
    )
    ways: tuple[Callable[[], Forward], ...] = (
        *(own if not is_divided else ()),  # these know one device
        lambda: PackedForward(model),
        lambda: PerSequenceForward(model, attention),
    )

    def measured() -> Reference:
        if reference.lesson is None:
            return reference
        return replace(reference, lesson=with_noises(reference.lesson, model, cache, positions))

    known = measured() if is_divided else reference
    kernels = library()
    with nullcontext() if kernels is None else kernels.packing_into(arena):
        forward, passed_over = choose_forward(ways, known, cache, precision, positions, measured)
    if isinstance(forward, NativeDecoder):
        findings.write(config, outline_of(model), reference)
    return forward, cache, passed_over


def _with_lesson(reference: Reference, model: transformers.PreTrainedModel, config: EngineConfig) -> Reference:
    """Returns the reference with a lesson. An encoder-decoder model, and one whose layers cannot be taught, has none:
    then with the spread of its logits, where products round their rows to codes."""
    kind, positions = _products(config), config.max_model_len
    if not model.config.is_encoder_decoder:
        lesson = observe_lesson(model, reference.shapes, reference.devices, kind, positions)
        if lesson is not None:
            return replace(reference, lesson=lesson)
    return replace(reference, spread=spread(model, reference)) if kind == "int8" else reference


def _seq2seq(config: EngineConfig, model: transformers.PreTrainedModel, cache: KVCache) -> Callable[[], Forward]:
    from service.engine.runner.forwards.seq2seq import Seq2SeqForward

    return lambda: Seq2SeqForward(model, cache, config.max_model_len)


def _precision(config: EngineConfig) -> str:
    """Returns the precision of the least exact part."""
    return "int8" if config.kv_cache_dtype == "int8" else _products(config)


def _products(config: EngineConfig) -> str:
    """Returns the precision of the products: "int8" where they round their rows to codes."""
    return "int8" if config.precision in QUANTIZED - {"int8-weight"} else config.dtype


def _blueprint(model: transformers.PreTrainedModel, max_model_len: int) -> Blueprint:
    return assemble(outline_of(model), LibraryWeights(model), max_model_len)


def _apart(whole: Blueprint) -> Blueprint:
    """Returns weights with a copy of a dense model's embedding. The library maps its files as one mapping, which would
    stay resident with the embedding. 8-bit files are mapped tensor by tensor (see `models.weights.loading`)."""
    if whole.embedding is None or whole.head.weight.dtype in (torch.int8, INT4, BLOCKS):
        return whole
    return replace(whole, embedding=whole.embedding.clone())


def _with_windows(shapes: tuple[LayerShape, ...], model: transformers.PreTrainedModel) -> tuple[LayerShape, ...]:
    """Returns the shapes with the layers' sliding windows, where the model's outline is known."""
    try:
        known = outline_of(model).shapes
    except CannotServe:
        return shapes
    return known if tuple(replace(each, window=None) for each in known) == shapes else shapes


def _make_cache(config: EngineConfig, shapes: tuple[LayerShape, ...], devices: Sequence[torch.device]) -> KVCache:
    """Returns the cache, whose layers lie on these devices."""
    dtype, block_size = kv_dtype(config), config.block_size
    blocks = KVBlocks(config.kv_cache_blocks) if config.kv_cache_blocks else _choose_blocks(config, shapes, devices)
    windows = blocks.window_blocks, config.step_tokens
    return KVCache(shapes, blocks.blocks, block_size, dtype, devices[0], devices, *windows)


def _choose_blocks(config: EngineConfig, shapes: Sequence[LayerShape], devices: Sequence[torch.device]) -> KVBlocks:
    dtype, block_size = kv_dtype(config), config.block_size
    size = KVBytes.of(shapes, block_size, dtype.itemsize)
    return choose_blocks(
        config.kv_cache_bytes,
        replace(size, full=size.full + draft_block_bytes(config)),
        window_of(shapes) if len(set(devices)) == 1 else None,
        Demand(config.max_num_seqs, config.max_model_len, max(config.step_tokens, CHUNK), block_size),
        _kv_room(config, [bytes_per_block([shape], block_size, dtype) for shape in shapes], devices),
    )


def _kv_room(config: EngineConfig, layer_bytes: Sequence[int], devices: Sequence[torch.device]) -> int:
    """Returns the free bytes for KV blocks. Other engines' blocks on a GPU are missing from the free ones already; a
    host gives pages at their first write."""
    distinct = list(dict.fromkeys(devices))
    promised = config.promised_bytes if distinct[0].type == "cpu" else 0
    free = [max(0, free_bytes(each) - promised) for each in distinct]
    return kv_room(free, layer_bytes, [distinct.index(each) for each in devices])


def _offload(config: EngineConfig, cache: KVCache) -> OffloadFile | None:
    """Returns the offload file; None if the disk cannot be written, or if layers lie on several devices. Then no block
    is kept on disk."""
    if not (config.kv_offload_bytes and config.prefix_caching) or cache.is_divided:
        return None
    try:
        return OffloadFile(cache, config.offload_directory, config.kv_offload_bytes)
    except OSError as error:
        with suppress(OSError):  # the log may be on the same full disk
            print(f"no KV blocks are kept on disk: {error}", file=sys.stderr)
        return None


def _row_rules(model: torch.nn.Module, cache: KVCache, dtype: torch.dtype) -> RowRules:
    """Measures the row rules on the weights in use, because kernels and their paddings differ by processor and
    shape. Divides the rows of the layers whose products torch computes."""
    measured: dict[tuple[torch.Size, torch.dtype], RowBlocks] = {}
    for layer, stored, multiplied in _dense_layers(model):
        kind = stored.shape, multiplied
        if kind not in measured:
            measured[kind] = row_blocks(stored.to(multiplied))
        divide_rows(layer, measured[kind].most)
    quantum = max((blocks.quantum for blocks in measured.values()), default=1)
    compute, device = matmul_dtype(dtype, cache.device), cache.device
    if device.type == "cpu" and library() is not None:
        return RowRules(quantum, 1)
    products = {(shape.key_dim, KV_TILE) for shape in cache.shapes} | {(KV_TILE, s.value_dim) for s in cache.shapes}
    attention = max(bmm_row_quantum(depth, width, compute, device) for depth, width in products)
    return RowRules(quantum, attention)


def _graphed(forward: Forward, cache: KVCache, rules: RowRules) -> Forward:
    """Returns the forward, on a GPU with its decode steps as graphs where it is our own and lies on one device."""
    if not isinstance(forward, FusedDecoder) or cache.device.type != "cuda" or cache.num_window_blocks:
        return forward
    return GraphedDecoder(forward, cache, rules)


def _dense_layers(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, Tensor, torch.dtype]]:
    """Yields the layers whose products torch computes, each with its stored weight [out, in] and the dtype in which it
    is multiplied."""
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, DenseLinear)):
            yield module, module.weight, module.weight.dtype
        elif isinstance(module, Int8Linear) and module.kernel == "dequantized":
            yield module, decoded(module.weight), torch.bfloat16
        elif isinstance(module, BlockLinear) and not module.is_native:
            yield module, module.weight.dequantized(torch.bfloat16), torch.bfloat16
        elif type(module).__name__ == "Conv1D":  # the library's, [in, out]
            weight = module.get_parameter("weight").T
            yield module, weight, weight.dtype


def _info(
    config: EngineConfig, runner: ModelRunner, kernels: tuple[str, ...], started: float, arena: Arena | None
) -> EngineInfo:
    cache, draft = runner.cache, runner.draft_model
    device, bytes_of_block = cache.device, cache.block_bytes
    peaks, no_peaks = peaks_of(products_dtype(config.precision, config.dtype, device), device, config.peaks)
    float_bytes = DTYPES[config.dtype].itemsize
    return EngineInfo(
        pid=os.getpid(),
        device=cache.device_names,
        dtype=config.dtype,
        precision=config.precision,
        forward=runner.forward.kind,
        kernels=kernels if draft is None else (*kernels, f"drafts: {draft.forward.kind}"),
        threads=torch.get_num_threads(),
        memory_bytes=weight_bytes(runner.forward.model) + (weight_bytes(draft.forward.model) if draft else 0),
        load_seconds=time.monotonic() - started,
        block_size=cache.block_size,
        blocks_total=cache.num_blocks,
        vocab_size=runner.vocab_size,
        no_embeddings=runner.no_states,
        kv_bytes_per_block=bytes_of_block + (draft.cache.block_bytes if draft else 0),
        window_blocks_total=cache.num_window_blocks,
        window_bytes_per_block=KVBytes.of(cache.shapes, cache.block_size, cache.dtype.itemsize).window,
        packed_weights=arena.path if arena else "",
        shared_bytes=arena.bytes if arena else 0,
        work=model_work(config.model_dir, cache.shapes, bytes_of_block // cache.block_size, float_bytes),
        peaks=peaks,
        no_peaks=no_peaks,
    )


def _kernels(config: EngineConfig, forward: Forward, cache: KVCache, rules: RowRules) -> tuple[str, ...]:
    """Returns a plain `part: kernel` for each part."""
    device = cache.device
    native = library() if device.type == "cpu" else None
    if config.precision == "file":
        linear = f"linear: blocks of the file {'dequantized' if native is None else 'native'}"
    elif config.precision == "int8-weight":
        linear = f"linear: 8-bit weights {int8_kernel(device)}"
    elif config.precision in QUANTIZED:
        kernel = int8_kernel(device)
        bits = f", {activation_reach().bit_length() + 1}-bit activations" if kernel == "onednn" else ""
        linear = f"linear: {config.precision} {kernel}{bits}"
    elif any(isinstance(module, NativeLinear) for module in forward.model.modules()):
        linear = f"linear: {config.dtype} native"
    else:
        linear = f"linear: {config.dtype} torch, rows padded to {rules.linear}"
    compute = str(matmul_dtype(DTYPES[config.dtype], device)).removeprefix("torch.")
    blocks = f"torch blocks {compute}" if native is None else "native blocks"
    blocks += ", int8 keys and values" if cache.dtype is torch.int8 else ""
    blocks += f", windows in {cache.num_window_blocks} of {cache.num_blocks} blocks" if cache.num_window_blocks else ""
    attention = f"attention: {blocks}" if forward.attends else "attention: library, per sequence"
    graphs = ("decode steps: CUDA graphs",) if isinstance(forward, GraphedDecoder) else ()
    return (linear, attention, *graphs, *(() if native is None else (f"native kernels: {native.level}",)))
