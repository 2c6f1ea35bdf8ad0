"""A lesson shows whether a forward computes what the library's model computes: layer by layer, from the same rows.

In 8 bits, a rounding in one layer moves the codes of all later ones, as far as a wrong forward would. So no layer reads
what another one has computed: each gets the library's rows, and what it adds to them is compared. The library computes
a lesson in fp32, so the roundings of one layer of the forward are all that may differ.

near  | a a a a a a a a b b b b b b b b |                      a prompt
far   | .. a a a a a a b b b b a a b | c c c c c c c c |       the blocks a and b again and again, then other tokens

Far rows see wrong rotary positions and wrong windows. Their past costs no step: a block table may repeat blocks. Going
back from the far rows, each run of a block is twice as long as the one before, so every window has another mixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from service.engine.kv_cache.kv_size import LayerShape
from service.engine.runner.forwards.attention import AttentionPlan, SequenceRows
from service.engine.runner.forwards.forward import CannotServe, Forward
from service.engine.runner.forwards.native_decoder import NativeDecoder
from service.engine.runner.forwards.step import Step
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.loading.teacher import NotLayered, Teacher, distance, in_fp32, is_exact, layers_of
from service.engine.runner.native.library import library
from service.engine.runner.native.linear import rounds_rows

if TYPE_CHECKING:
    import transformers

BLOCK = 8
NEAR = 2 * BLOCK
FAR = 8
PAST = 4096
"""The positions before the far rows; twice the model's sliding window, if that is more."""
MOST_PAST = 16384
LEAST_BOUND = {"fp32": 1e-4, "bf16": 1e-3, "int8": 4e-3}
HEAD_BOUND = {"fp32": 1e-4, "bf16": 3e-4, "int8": 4e-3}
"""By the dtype of the products. The kernels that are ours differ by 1e-6, and by 0.002 where codes are other ones."""
ROUNDED_BOUND = 6e-3
"""Where the library's products of bf16 do not round their rows as the kernels' do."""
CODE_BOUND = 0.025
"""One of a row's codes may be another one: divided by the root of a row's width, a layer may differ by so much."""
SPREADS = 2.0
"""A layer may differ by so many times what the library's own differs as its rows move by a rounding of fp32."""
NOISES, HEAD_NOISES = 1.5, 2.0
"""What computes in bf16 from part to part may differ by so many times what the library does as it was loaded."""
MOST_BOUND = 0.25
CACHED_BOUND = 0.15
"""What the rows of an 8-bit cache may add to a layer's difference: three times what they did in any model here."""
EMBEDDED_BOUND = 0.01
WHOLE_BOUND = 1e-3
"""The whole computes the same as its parts, bit for bit."""


UNTEACHABLE: Final = (NotLayered, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What comes of a model whose layers take or give something else than rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """The rows before each layer and behind the last one, fp32 [layers + 1, rows, hidden]. `logits` are fp32 [pieces,
    vocabulary], of the last row of the near and of the far piece. `past` is the number of positions before the far one.

    `bounds` are of the layers and of the head, and so are `noises`: how far the library's are as it was loaded,
    with rows in its own dtype; none where that was not measured."""

    rows: Tensor
    logits: Tensor
    past: int
    bounds: tuple[float, ...]
    noises: tuple[float, ...] = ()

    def bound(self, layer: int, output: Tensor) -> float:
        """Returns the bound of a layer with this output."""
        return min(MOST_BOUND, max(self.bounds[layer], self._noise(layer, output, NOISES)))

    def head_bound(self, logits: Tensor) -> float:
        return min(MOST_BOUND, max(self.bounds[-1], self._noise(-1, logits, HEAD_NOISES)))

    def _noise(self, part: int, output: Tensor, times: float) -> float:
        return times * self.noises[part] if self.noises and output.dtype is not torch.float32 else 0.0


def past_of(config: Any, positions: int) -> int:
    """Returns the positions before the far rows of a model with this config; 0 for too few positions."""
    window = getattr(config, "sliding_window", None) or 0
    blocks = min(positions - FAR, max(PAST, 2 * window), MOST_PAST) // BLOCK
    return blocks * BLOCK if blocks > 2 else 0


def pieces(cache: KVCache, vocabulary: int, positions: int, past: int, device: torch.device) -> list[Step]:
    """Returns the steps of the near rows and, with a past, of the far ones."""
    steps = [_step(cache, vocabulary, SequenceRows(0, min(NEAR, positions), 0, (0, 1)), device)]
    if past:
        blocks = past // BLOCK
        table = [(blocks - at).bit_length() % 2 for at in range(blocks)]
        steps.append(_step(cache, vocabulary, SequenceRows(0, FAR, past, (*table, 2)), device))
    return steps


def _step(cache: KVCache, vocabulary: int, rows: SequenceRows, device: torch.device) -> Step:
    positions = range(rows.start, rows.start + rows.count)
    return Step(
        torch.tensor([(7919 * position + 11) % vocabulary for position in positions], device=device),
        torch.tensor(positions, device=device),
        AttentionPlan(cache, [rows], rows.count, NEAR, device),
        (rows,),
        torch.tensor([rows.count - 1], device=device),
        (),
    )


def cache_of(shapes: Seq[LayerShape], dtype: torch.dtype, devices: Seq[torch.device]) -> KVCache:
    """Returns a cache with the blocks of a lesson."""
    return KVCache(shapes, 3, BLOCK, dtype, devices[0], devices)


@torch.inference_mode()
def observe_lesson(
    model: transformers.PreTrainedModel,
    shapes: Seq[LayerShape],
    devices: Seq[torch.device],
    kind: str,
    positions: int,
) -> Lesson | None:
    """Returns the lesson of the library's model; None if its layers cannot be given rows one by one. `kind` is the
    dtype of products: fp32, bf16, or int8 where they round their rows to codes."""
    from service.engine.runner.forwards.foreign import run_over_blocks

    kernels = library() if devices[0].type == "cpu" else None
    rounded = torch.bfloat16 if kind == "bf16" and kernels is not None and rounds_rows(kernels) else torch.float32
    config = model.config.get_text_config()
    past = past_of(config, positions)
    teachers: list[Teacher] = []
    logits: list[Tensor] = []
    try:
        layers = layers_of(model, len(shapes))
        cache = cache_of(shapes, torch.float32, devices)
        for step in pieces(cache, config.vocab_size, positions, past, devices[0]):
            teachers.append(Teacher(layers, None, spreads=not teachers))
            with in_fp32(model, layers, rounded), teachers[-1].teaching():
                logits.append(run_over_blocks(model, step, step.sequences[0])[-1:].float().cpu())
    except UNTEACHABLE:
        return None
    rows = torch.stack([torch.cat([r.cpu() for r in parts]) for parts in zip(*(t.rows for t in teachers), strict=True)])
    of_code = CODE_BOUND / rows.shape[-1] ** 0.5 if kind == "int8" else 0.0
    exact = kind != "bf16" or all(is_exact(layer) for layer in layers)
    least = max(LEAST_BOUND[kind] if exact else ROUNDED_BOUND, of_code)
    bounds = (*(max(least, SPREADS * each) for each in teachers[0].spreads), max(HEAD_BOUND[kind], of_code))
    return Lesson(rows, torch.cat(logits), past, bounds)


@torch.inference_mode()
def with_noises(lesson: Lesson, model: transformers.PreTrainedModel, cache: KVCache, positions: int) -> Lesson:
    """Returns the lesson with the noises of the library's model as it was loaded."""
    from service.engine.runner.forwards.foreign import run_over_blocks

    devices = [keys.device for keys in cache.keys]
    dtype = next(each.dtype for each in model.parameters() if each.is_floating_point())
    own, noises = cache_of(cache.shapes, dtype, devices), []
    for step, rows, expected in _taught(lesson, own, positions):
        teacher = Teacher(layers_of(model, len(rows) - 1), rows)
        with teacher.teaching():
            logits = run_over_blocks(model, step, step.sequences[0])[-1]
        noises.append([*_distances(teacher.outputs, rows), _apart(logits, expected)])
    return replace(lesson, noises=tuple(max(each) for each in zip(*noises, strict=True)))


def _taught(lesson: Lesson, cache: KVCache, positions: int) -> Iterator[tuple[Step, list[Tensor], Tensor]]:
    """Yields the lesson's pieces: the step, the rows before each layer and behind the last one, and the logits."""
    at = 0
    for step, logits in zip(_steps(lesson, cache, positions), lesson.logits, strict=True):
        yield step, list(lesson.rows[:, at : at + len(step.token_ids)]), logits
        at += len(step.token_ids)


def _steps(lesson: Lesson, cache: KVCache, positions: int) -> list[Step]:
    return pieces(cache, lesson.logits.shape[1], positions, lesson.past, cache.device)


def _distances(outputs: Seq[Tensor], rows: Seq[Tensor]) -> list[float]:
    return [
        distance(output.float(), after.to(output.device), (after - before.to(after.device)).to(output.device))
        for output, before, after in zip(outputs, rows[:-1], rows[1:], strict=True)
    ]


@torch.inference_mode()
def repeat_lesson(forward: Forward, lesson: Lesson, cache: KVCache, positions: int) -> None:
    """Has a forward repeat a lesson over caches of the shapes of `cache`: first over one that rounds nothing, so that
    an 8-bit cache loosens no bound. Raises CannotServe if a part of the forward computes something else."""
    if len(cache.shapes) + 1 != len(lesson.rows):
        raise CannotServe(f"it has {len(cache.shapes)} layers, the library's model {len(lesson.rows) - 1}")
    devices = [keys.device for keys in cache.keys]
    _repeat(forward, lesson, cache_of(cache.shapes, torch.float32, devices), positions, 0.0)
    if cache.dtype is torch.int8:
        _repeat(forward, lesson, cache_of(cache.shapes, torch.int8, devices), positions, CACHED_BOUND)


def _repeat(forward: Forward, lesson: Lesson, cache: KVCache, positions: int, extra: float) -> None:
    for step, rows, expected in _taught(lesson, cache, positions):
        first, outputs, logits = _answers(forward, step, rows)
        _compare("embedding", distance(first.cpu(), rows[0], rows[0]), EMBEDDED_BOUND)
        for index, (output, difference) in enumerate(zip(outputs, _distances(outputs, rows), strict=True)):
            _compare(f"layer {index}", difference, lesson.bound(index, output) + extra)
        _compare("head", _apart(logits[0], expected), lesson.head_bound(logits))


@torch.inference_mode()
def compare_whole(forward: NativeDecoder, cache: KVCache, ends: Seq[int], logits: Seq[Tensor]) -> None:
    """Compares `logits`, a forward's [1, vocabulary] for each of the near rows `ends`, over `cache`, with what its
    layers compute one by one. Raises CannotServe if they differ."""
    if not ends:
        return
    own = cache_of(cache.shapes, cache.dtype, [cache.device] * len(cache.shapes))
    near = pieces(own, forward.vocab_size, max(ends) + 1, 0, cache.device)[0]
    parts = forward.parts(replace(near, logit_rows=torch.tensor(ends)))
    rows = parts.embedded()
    for index in range(len(cache.shapes)):
        rows = parts.layer(index, rows)
    for whole, expected in zip(logits, parts.logits(rows), strict=True):
        _compare("whole", _apart(whole[0], expected), WHOLE_BOUND)


def _answers(forward: Forward, step: Step, rows: list[Tensor]) -> tuple[Tensor, Seq[Tensor], Tensor]:
    """Returns the rows that the forward's first layer reads, each layer's output for the rows before it, and the logits
    of the last ones."""
    if isinstance(forward, NativeDecoder):
        parts = forward.parts(step)
        outputs = [parts.layer(index, each) for index, each in enumerate(rows[:-1])]
        return parts.embedded(), outputs, parts.logits(rows[-1])
    try:
        teacher = Teacher(layers_of(forward.model, len(rows) - 1), rows)
        with teacher.teaching():
            logits = forward(step)
    except NotLayered as error:
        raise CannotServe(str(error)) from None
    return teacher.first, teacher.outputs, logits


def _apart(logits: Tensor, expected: Tensor) -> float:
    """Returns the root mean square difference of logits, in the standard deviations of the expected ones."""
    return float((logits.float().cpu() - expected).square().mean().sqrt() / expected.std())


def _compare(what: str, difference: float, bound: float) -> None:
    if not difference <= bound:
        raise CannotServe(
            f"its {what} differs from the library's by {difference:.2g} of what it gives (bound {bound:.2g})"
        )
