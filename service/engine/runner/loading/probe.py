"""The probe finds a way to compute an architecture. It tries the ways at load on a short prompt, never by name.

library's own forward on the prompt ──▶ reference logits, and the heads of each layer as the library caches them
                                    ──▶ a lesson (see `lesson`): what each layer makes of which rows
ours ▶ library, packed ▶ library, one sequence at a time: the first that repeats the lesson wins
encoder-decoder     ▶ library over our blocks (see `seq2seq`), or none: by the logits, because it has no lesson
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from service.engine.kv_cache.kv_size import LayerShape
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.forwards.forward import CannotServe, Forward
from service.engine.runner.forwards.native_decoder import NativeDecoder
from service.engine.runner.forwards.step import RowRules, pack
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.loading.lesson import Lesson, compare_whole, repeat_lesson
from service.engine.sequences.batch import Batch, Scheduled
from service.engine.sequences.sequence import Sequence

if TYPE_CHECKING:
    import transformers
    from transformers.cache_utils import DynamicCache

CUTS = (0, 7, 15, 16)
"""The prompt is computed in these chunks; the last one is a decode step."""
ENCODED = 13
"""Tokens of an encoder's input; not whole blocks on purpose."""
PROBE_TOLERANCE = {"fp32": 1e-3, "bf16": 0.3, "int8": 0.6}
"""Limit of the root mean square difference to the reference logits, in their standard deviations. Unrelated logits
differ by 1.4. 8-bit ones differ by 0.2 on a deep random model, because any change in rounding moves all later codes."""
MOST_TOLERANCE = 1.2
SPREADS = 1.5
"""A forward may differ from the library by so many times what the library differs from itself (`spread`), up to the
most. Outlier columns leave few codes to the others: a planted model's own spread was 0.6 in int4 and 1.3 in int8."""
MOVED = 2.0**-8
MOVES = 2
"""The input of the library's forward is moved by up to such a part of itself, so many times."""

SAFE_RULES = RowRules(16, 16)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The library's logits [3, vocabulary], fp32, of the last token of each chunk of `token_ids`, and its cached shape
    and device of each layer. `encoder_ids` is the input of an encoder, empty without one. `spread` is how far the
    logits move, in their standard deviations, as the model's input moves by a rounding; 0 where that was not asked.
    With a `lesson`, a forward is judged by that, and no logits are needed."""

    token_ids: tuple[int, ...]
    logits: Tensor
    shapes: tuple[LayerShape, ...]
    devices: tuple[torch.device, ...]
    encoder_ids: tuple[int, ...] = ()
    spread: float = 0.0
    lesson: Lesson | None = None


@torch.inference_mode()
def observe(model: transformers.PreTrainedModel, device: torch.device) -> Reference:
    """Runs the library's own forward on a short prompt. Raises CannotServe if it caches anything else than keys and
    values, or more for an encoder's output than for a token."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    vocabulary = model.config.get_text_config().vocab_size
    token_ids = tuple((7919 * i + 11) % vocabulary for i in range(CUTS[-1]))
    input_ids = torch.tensor([token_ids], device=device)
    cache, ends = DynamicCache(), [cut - 1 for cut in CUTS[1:]]
    if not model.config.is_encoder_decoder:
        logits = model(input_ids=input_ids, past_key_values=cache, use_cache=True).logits
        return Reference(token_ids, logits[0, ends].float(), _shapes(model, cache), _devices(cache))
    encoder_ids, crossed = token_ids[::-1][:ENCODED], DynamicCache()
    logits = model(
        input_ids=torch.tensor([encoder_ids], device=device),
        decoder_input_ids=input_ids,
        past_key_values=EncoderDecoderCache(cache, crossed),
        use_cache=True,
    ).logits
    shapes = _shapes(model, cache)
    if shapes != _shapes(model, crossed):
        raise CannotServe(f"{type(model).__name__} has other heads for the encoder's output than for its own")
    return Reference(token_ids, logits[0, ends].float(), shapes, _devices(cache), encoder_ids)


def spread(model: transformers.PreTrainedModel, reference: Reference) -> float:
    """Returns the spread of the reference's logits."""
    generator = torch.Generator().manual_seed(0)

    def move(_module: torch.nn.Module, _ids: object, rows: Tensor) -> Tensor:
        drawn = (2 * torch.rand(rows.shape, generator=generator) - 1).to(rows)
        return rows * (1 + MOVED * drawn)

    hook = model.get_input_embeddings().register_forward_hook(move)
    try:
        moved = [observe(model, reference.logits.device).logits for _ in range(MOVES)]
    finally:
        hook.remove()
    return max(float(_difference(logits, reference.logits).max()) for logits in moved)


def _difference(logits: Tensor, expected: Tensor) -> Tensor:
    """Returns the root mean square difference of each row [n], in the standard deviations of the expected rows."""
    return (logits - expected).square().mean(-1).sqrt() / expected.std(-1)


def _shapes(model: transformers.PreTrainedModel, cache: DynamicCache) -> tuple[LayerShape, ...]:
    shapes = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.ndim != 4:
            raise CannotServe(f"{type(model).__name__} keeps a state that is not made of keys and values")
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[3]))
    if not shapes:
        raise CannotServe(f"{type(model).__name__} does not use the library's cache")
    return tuple(shapes)


def _devices(cache: DynamicCache) -> tuple[torch.device, ...]:
    layers: Any = cache.layers
    return tuple(layer.keys.device for layer in layers)


def choose_forward(
    ways: Seq[Callable[[], Forward]],
    reference: Reference,
    cache: KVCache,
    precision: str,
    positions: int,
    measured: Callable[[], Reference] | None = None,
) -> tuple[Forward, tuple[str, ...]]:
    """Returns the first way that repeats the reference, and the reasons against the ways before it. Raises CannotServe
    with every way's reason if no way does. The model has so many `positions`. All ways but the first are judged by the
    reference as it is `measured` then, if that is given."""
    reasons: list[str] = []
    for number, way in enumerate(ways):
        if number and measured is not None:
            reference, measured = measured(), None
        try:
            forward = way()
            verify(forward, reference, cache, PROBE_TOLERANCE[precision], positions)
            return forward, tuple(dict.fromkeys(reasons))
        except (CannotServe, TypeError) as error:
            reasons.append(str(error))
    raise CannotServe("; ".join(dict.fromkeys(reasons)))


@torch.inference_mode()
def verify(forward: Forward, reference: Reference, cache: KVCache, tolerance: float, positions: int) -> None:
    """Has a forward repeat the lesson, or the reference's logits where there is none. Raises CannotServe if it computes
    something else."""
    lesson = reference.lesson
    if lesson is not None:
        repeat_lesson(forward, lesson, cache, positions)
        if isinstance(forward, NativeDecoder):
            chunks = list(_by_chunks(forward, reference, cache, positions))
            compare_whole(forward, cache, [end - 1 for end in CUTS[1 : len(chunks) + 1]], chunks)
        return
    bound = max(tolerance, min(MOST_TOLERANCE, SPREADS * reference.spread))
    for found, logits in zip(_by_chunks(forward, reference, cache, positions), reference.logits, strict=False):
        error = float(_difference(found[0].float(), logits))
        if not error <= bound:
            raise CannotServe(
                f"its logits differ from the library's by {error:.2g} of their deviation (bound {bound:.2g})"
            )


def _by_chunks(forward: Forward, reference: Reference, cache: KVCache, positions: int) -> Iterator[Tensor]:
    """Yields the logits [1, vocabulary] of the prompt's chunks, as far as the cache and the positions reach."""
    request = Request("probe", reference.encoder_ids or reference.token_ids, SamplingParams(max_tokens=1))
    sequence = Sequence.of(request, reference.token_ids if reference.encoder_ids else (), cache.block_size)
    tokens, slots, room = sequence.token_ids, sequence.num_encoder_slots, cache.num_blocks * cache.block_size
    cache.lend(sequence, min(len(tokens), room))
    for first, last in pairwise(CUTS):
        if slots + last > room or last > positions:
            break
        sequence.num_computed_tokens = slots + first if first else 0
        sequence.token_ids = tokens[: slots + last]
        count = sequence.num_tokens - sequence.num_computed_tokens
        yield forward(pack(Batch((Scheduled(sequence, count),)), cache, SAFE_RULES, cache.device))
