"""Which way to compute this architecture? Tried at load on a short prompt, not looked up in a list of names.

library's own forward on the prompt ──▶ reference logits, and the heads of each layer as the library caches them
ours (Llama-shaped) ▶ library, packed ▶ library, one sequence at a time: the first that repeats the reference wins
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from service.engine.request import Batch, Request, SamplingParams, Scheduled, Sequence
from service.runner.forward import CannotServe, Forward
from service.runner.kv_cache import KVCache, LayerShape
from service.runner.step import RowRules, pack

if TYPE_CHECKING:
    import transformers

CUTS = (0, 7, 15, 16)
"""The prompt is given in these chunks, of which the last is a decode step."""
PROBE_TOLERANCE = {"fp32": 1e-3, "bf16": 0.3, "int8": 0.6}
"""Root mean square difference to the reference logits, in their standard deviations. Unrelated logits differ by 1.4;
8-bit ones by 0.2 on a deep random model, for any change in rounding moves all later codes."""

SAFE_RULES = RowRules(16, 16)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The library's logits [3, vocabulary], fp32, of the last token of each chunk of `token_ids`, and what it cached
    for each layer."""

    token_ids: tuple[int, ...]
    logits: Tensor
    shapes: tuple[LayerShape, ...]


@torch.inference_mode()
def observe(model: transformers.PreTrainedModel, device: torch.device) -> Reference:
    """Runs the library's own forward on a short prompt. Raises CannotServe when it caches anything else than keys
    and values."""
    from transformers.cache_utils import DynamicCache

    vocabulary = model.config.get_text_config().vocab_size
    token_ids = tuple((7919 * i + 11) % vocabulary for i in range(CUTS[-1]))
    cache = DynamicCache()
    logits = model(input_ids=torch.tensor([token_ids], device=device), past_key_values=cache, use_cache=True).logits
    shapes = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.ndim != 4:
            raise CannotServe(f"{type(model).__name__} keeps a state that is not made of keys and values")
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[3]))
    if not shapes:
        raise CannotServe(f"{type(model).__name__} does not use the library's cache")
    ends = [cut - 1 for cut in CUTS[1:]]
    return Reference(token_ids, logits[0, ends].float(), tuple(shapes))


def choose_forward(
    ways: Seq[Callable[[], Forward]], reference: Reference, cache: KVCache, precision: str
) -> tuple[Forward, tuple[str, ...]]:
    """The first way that repeats the reference, and why those before it were passed over. Raises CannotServe with every
    way's reason when none does."""
    reasons: list[str] = []
    for way in ways:
        try:
            forward = way()
            verify(forward, reference, cache, PROBE_TOLERANCE[precision])
            return forward, tuple(dict.fromkeys(reasons))
        except (CannotServe, TypeError) as error:
            reasons.append(str(error))
    raise CannotServe("; ".join(dict.fromkeys(reasons)))


@torch.inference_mode()
def verify(forward: Forward, reference: Reference, cache: KVCache, tolerance: float) -> None:
    """Repeats the reference over blocks, as far as the cache reaches; raises CannotServe when the logits differ."""
    tokens, room = reference.token_ids, cache.num_blocks * cache.block_size
    sequence = Sequence.of(Request("probe", tokens, SamplingParams(max_tokens=1)))
    sequence.block_table = list(range(min(cache.num_blocks, -(-len(tokens) // cache.block_size))))
    for (first, last), logits in zip(pairwise(CUTS), reference.logits, strict=True):
        if last > room:
            break
        sequence.num_computed_tokens = first
        sequence.token_ids = list(tokens[:last])
        step = pack(Batch((Scheduled(sequence, last - first),)), cache, SAFE_RULES, logits.device)
        error = (forward(step)[0].float() - logits).square().mean().sqrt()
        bound = tolerance * float(logits.std())
        if not float(error) <= bound:
            raise CannotServe(f"its logits differ from the library's by {float(error):.2g} (bound {bound:.2g})")
