"""Foreign forwards run the library's own forward over our KV blocks, for every decoder-only architecture.

There are two ways, chosen by what the architecture can do (see `probe.choose_forward`), never by its name:

PackedForward       one forward for the whole step. The library calls our attention through its attention interface;
                    the step travels as a keyword argument, so there is no state between calls.
PerSequenceForward  one forward per scheduled sequence, for architectures that compute attention themselves. The library
                    sees a cache object whose contents are our blocks. Correct, slower, and equal to other batches and
                    chunkings only up to rounding, because the library's attention sees other shapes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from models.weights.experts import SeparateExperts, is_fused
from models.weights.loading import LowRankWeights
from service.engine.runner.forwards.adapters import Adapted
from service.engine.runner.forwards.attention import AttentionPlan, AttentionSpec, SequenceRows
from service.engine.runner.forwards.forward import CannotServe, vocab_size_of
from service.engine.runner.forwards.step import Step
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native.library import KINDS, Library, library
from service.engine.runner.native.linear import NativeLinear

INTERFACE = "dosirak"
STEP_ARGUMENT = "dosirak_plan"
MOVING_ROPE = frozenset({"dynamic", "longrope"})
REPLACED_TOLERANCE = 0.1
"""Limit of the root mean square difference of logits, in their standard deviations. bf16 rounding is under it, a wrong
layer is over it."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Serves as the library's attention function: query, key and value [1, heads, rows, dim] to [1, rows, heads, dim].
    Raises CannotServe for any option that our attention does not compute."""
    plan = kwargs.get(STEP_ARGUMENT)
    if not isinstance(plan, AttentionPlan):
        raise CannotServe("the architecture does not pass keyword arguments on to its attention")
    extra = [name for name in ("position_bias", "alibi", "head_mask") if kwargs.get(name) is not None]
    if extra or attention_mask is not None:
        raise CannotServe(f"its attention takes {', '.join(extra) or 'a mask of its own'}")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise CannotServe("its attention layers carry no index")
    sinks = None if s_aux is None else s_aux.detach().float()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    spec = AttentionSpec(scale, sliding_window, softcap, sinks=sinks)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    own_plan = plan.on(query.device)
    kept = own_plan.cache.shapes[layer]
    if (*k.shape[1:], v.shape[2]) != (kept.kv_heads, kept.key_dim, kept.value_dim):
        raise CannotServe("its cache keeps something else than the keys and values that its attention reads")
    return own_plan.attend(layer, q, k, v, spec)[None], None


def pin_rope(model: transformers.PreTrainedModel, max_model_len: int) -> None:
    """Fixes rotary tables that depend on the longest sequence of a forward to those of `max_model_len`. Otherwise a
    token's keys would depend on its neighbours and on chunks. vLLM does the same; the library switches by length."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str) and kind in MOVING_ROPE:
            rotary: Any = module
            table = ROPE_INIT_FUNCTIONS[kind](rotary.config, rotary.inv_freq.device, seq_len=max_model_len)
            rotary.inv_freq, rotary.attention_scaling = table
            rotary.rope_type = "default"


def _rope_kinds(module: nn.Module) -> Iterable[str]:
    kind = getattr(module, "rope_type", ())
    return [kind] if isinstance(kind, str) else kind.values() if isinstance(kind, dict) else ()


def _short_logits(model: transformers.PreTrainedModel) -> Tensor:
    token_ids = torch.arange(8, device=model.device)[None] % model.config.get_text_config().vocab_size
    decoder_inputs = {"decoder_input_ids": token_ids} if model.config.is_encoder_decoder else {}
    logits: Tensor = model(input_ids=token_ids, **decoder_inputs, use_cache=False).logits
    return logits.float()


@torch.inference_mode()
def replace_linears(model: transformers.PreTrainedModel, kernels: Library) -> bool:
    """Replaces the dense layers of the library's model, and its experts, by native ones; its forward stays. Returns
    False, and restores the model, if its logits change then: some models read a layer's weight instead of calling
    it."""
    found: dict[str, Any] = dict(model.named_modules())
    dense = {name: module for name, module in found.items() if type(module) in (nn.Linear, Conv1D) or is_fused(module)}
    if not dense or not {parameter.dtype for each in dense.values() for parameter in each.parameters()} <= set(KINDS):
        return False
    before = _short_logits(model)
    for name, module in dense.items():
        model.set_submodule(name, _native(kernels, module))
    try:
        after = _short_logits(model)
        same = float((after - before).square().mean().sqrt() / before.std()) < REPLACED_TOLERANCE
    except (AttributeError, RuntimeError, TypeError):
        same = False
    for name, module in dense.items() if not same else ():
        model.set_submodule(name, module)
    return same


def _native(kernels: Library, module: Any) -> nn.Module:
    if not is_fused(module):
        return NativeLinear(kernels, (_as_part(module),))
    return SeparateExperts.of_module(module, lambda part: NativeLinear(kernels, (part,)))


def _as_part(module: Any) -> Any:
    weight = module.weight.T.contiguous() if isinstance(module, Conv1D) else module.weight
    return SimpleNamespace(weight=weight, bias=module.bias)


class LibraryForward:
    """The library's model, with adapters over its modules."""

    kind = "transformers"

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self.model = model
        self.no_states = _no_states(model)
        self.vocab_size = vocab_size_of(model)
        head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._adapted = Adapted(head, {name: (module, 0) for name, module in model.named_modules()})

    def load_adapter(self, name: str, weights: Mapping[str, LowRankWeights]) -> None:
        self._adapted.load_adapter(name, weights)

    def unload_adapter(self, name: str) -> None:
        self._adapted.unload_adapter(name)


class PackedForward(LibraryForward):
    """The library's model over packed rows and our attention. A mixture of experts is not invariant: the library's
    router multiplies all rows at once."""

    attends = True

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        layer_types = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
        if not model.is_backend_compatible():  # type: ignore[no-untyped-call]
            raise CannotServe("the architecture has no attention interface")
        if layer_types - {"full_attention", "sliding_attention"}:
            raise CannotServe(f"layers of types {sorted(layer_types)}")
        if moving := sorted({kind for module in model.modules() for kind in _rope_kinds(module)} & MOVING_ROPE):
            raise CannotServe(f"{', '.join(moving)} rotary embeddings depend on the longest sequence of a forward")
        kernels = library()
        if kernels is not None and model.device.type == "cpu":
            replace_linears(model, kernels)
        super().__init__(model)
        transformers.AttentionInterface.register(INTERFACE, _attention)
        model.set_attn_implementation(INTERFACE)
        self.invariant = not any(is_fused(each) or isinstance(each, SeparateExperts) for each in model.modules())

    def __call__(self, step: Step) -> Tensor:
        with self._adapted.rows_of(step), _final_states(self.model, step.final is not None) as final:
            logits: Tensor = self.model(
                input_ids=step.token_ids[None],
                position_ids=step.positions[None],
                use_cache=False,
                logits_to_keep=step.logit_rows,
                **{STEP_ARGUMENT: step.plan},
            ).logits
        if step.final is not None:
            step.final.take(final[0])
        return logits[0]


def _no_states(model: transformers.PreTrainedModel) -> str:
    """Returns why the model's states behind the final norm cannot be read; "" if they can. Tries it."""
    with _final_states(model, True) as found:
        rows = len(_short_logits(model)[0])
    if len(found) == 1 and found[0].shape[:1] == (rows,):
        return ""
    return f"the hidden states of {type(model).__name__} cannot be told from its logits"


@contextmanager
def _final_states(model: transformers.PreTrainedModel, is_read: bool) -> Iterator[list[Tensor]]:
    """Gives the list that gets the `last_hidden_state` [rows, hidden] of each forward meanwhile, if it `is_read`. Some
    architectures call their decoder past the model that holds it."""
    states: list[Tensor] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        states[:] = [output[0][0]]  # the outermost comes last

    inner: Any = (model.base_model, model.get_decoder())  # type: ignore[no-untyped-call]
    modules = {each for each in inner if isinstance(each, nn.Module) and each is not model} if is_read else ()
    hooks = [each.register_forward_hook(note) for each in modules]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


class LayerInBlocks(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of the library's cache, with tensors in our blocks."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, because the blocks exist."""

    def get_max_length(self) -> int:
        return -1


class _BlockLayer(LayerInBlocks):  # type: ignore[no-untyped-call]
    """One layer of the cache for one sequence."""

    def __init__(self, cache: KVCache, layer: int, sequence: SequenceRows) -> None:
        super().__init__()
        self.cache, self.layer, self.sequence = cache, layer, sequence

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores new keys [1, heads, n, dim] and returns all keys of the sequence, the new ones included."""
        cache, sequence, heads = self.cache, self.sequence, key_states.shape[1]
        size, end = cache.block_size, sequence.start + sequence.count
        table = sequence.window_table if cache.has_window_blocks(self.layer) else sequence.block_table
        device = key_states.device
        slots = [table[p // size] * size + p % size for p in range(sequence.start, end)]
        rows = cache.slot_rows(torch.tensor(slots, device=device), heads)
        cache.write(self.layer, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1), rows)
        blocks = torch.tensor([list(table[: -(-end // size)])], device=device)
        keys, values = cache.gather(self.layer, cache.block_rows(blocks, heads), heads)
        return keys[None, :, :end].to(key_states.dtype), values[None, :, :end].to(value_states.dtype)

    def get_seq_length(self) -> int:
        return self.sequence.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.sequence.start + query_length, 0


class PerSequenceForward(LibraryForward):
    """The library's model over one sequence after the other, with the library's own attention."""

    attends = False
    invariant = False

    def __init__(self, model: transformers.PreTrainedModel, attention: str) -> None:
        model.set_attn_implementation(attention)
        super().__init__(model)

    def __call__(self, step: Step) -> Tensor:
        logit_rows = step.logit_rows.tolist()
        by_row: dict[int, Tensor] = {}
        states: list[Tensor] = []
        adapters = {each.row: each.adapter for each in step.adapter_rows}
        for sequence in step.sequences:
            rows = [row for row in dict.fromkeys(logit_rows) if sequence.row <= row < sequence.row + sequence.count]
            with (
                self._adapted.all_rows(adapters.get(sequence.row, "")),
                _final_states(self.model, step.final is not None) as final,
            ):
                logits = run_over_blocks(self.model, step, sequence)
            states += final
            by_row.update((row, logits[row - sequence.row]) for row in rows)
        if step.final is not None:
            step.final.take(torch.cat(states))
        return (
            torch.stack([by_row[row] for row in logit_rows]) if logit_rows else step.token_ids.new_zeros(0, 1).float()
        )


def run_over_blocks(model: transformers.PreTrainedModel, step: Step, sequence: SequenceRows) -> Tensor:
    """Returns the logits of all rows of one sequence of a step, by the library's forward."""
    blocks = step.plan.cache
    layers = [_BlockLayer(blocks, layer, sequence) for layer in range(len(blocks.shapes))]
    rows, end = slice(sequence.row, sequence.row + sequence.count), sequence.start + sequence.count
    arguments = {
        "input_ids": step.token_ids[None, rows],
        "attention_mask": torch.ones(1, end, dtype=torch.long, device=step.positions.device),
        "position_ids": step.positions[None, rows],
        "past_key_values": Cache(layers=list(layers)),
        "use_cache": True,
    }
    accepted = _accepted(model.forward.__func__)  # type: ignore[attr-defined]
    passed = {name: value for name, value in arguments.items() if name in accepted}
    logits: Tensor = model(**passed).logits
    return logits[0]


@cache
def _accepted(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)
