"""Random steps through random decoders, as an engine would make them. Knows shapes and blocks; no tokenizer.

`python -m tests.random_steps LEVEL SEED SECONDS` does so on the sanitized kernels of an instruction set, for a process
that was started with the sanitizer's runtime preloaded (see tests/property/test_sanitized_steps.py).

Blocks that no sequence holds are full of NaN, and so is, in that process, memory that nobody has written: whatever
reads what is not its own shows in the logits.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from service.engine.kv_cache.kv_size import SCALE_BYTES, LayerShape, window_of
from service.engine.runner import kv_cache
from service.engine.runner.forwards.attention import AttentionPlan, AttentionSpec, DistanceBias, SequenceRows
from service.engine.runner.forwards.native_decoder import NativeDecoder
from service.engine.runner.forwards.step import AdapterRows, Step
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.native import library as native_library
from service.engine.runner.native import linear as native_linear
from service.engine.runner.native.library import Library, open_library
from tests.random_models import Sizes, noise, random_adapter, random_blueprint

CPU: Final = torch.device("cpu")
PRECISIONS = ("fp32", "bf16", "int8", "int8-weight", "llm-int8", "int4")
KV_DTYPES = (torch.float32, torch.bfloat16, torch.int8)


def poison(cache: KVCache, block: int, window_block: int) -> None:
    """The block, and its window block, hold no number any more."""
    for layer, both in enumerate(zip(cache.keys, cache.values, strict=True)):
        place = window_block if cache.has_window_blocks(layer) else block
        for tensor in both:
            if cache.dtype is torch.int8:
                tensor[place, :, :, -SCALE_BYTES:] = torch.tensor([float("nan")]).view(torch.int8)
            else:
                tensor[place] = float("nan")


@dataclass
class Decoding:
    """A sequence: `length` tokens are computed, in the blocks of `table`."""

    adapter: str
    length: int = 0
    table: list[int] = field(default_factory=list)


class RandomEngine:
    """Sequences that come, grow by random chunks and go, over one random decoder."""

    def __init__(self, rng: random.Random, precision: str, kv_dtype: torch.dtype, sizes: Sizes, adapters: int) -> None:
        self.rng, self.sizes = rng, sizes
        s = self.sizes
        self.whole = random_blueprint(rng, s, precision)
        shapes = self.whole.outline.shapes
        windowed = any(shape.window for shape in shapes) and rng.random() < 0.5
        self.cache = KVCache(
            shapes, s.blocks, s.block_size, kv_dtype, CPU, num_window_blocks=s.blocks if windowed else 0
        )
        self.window_blocks = rng.sample(range(s.blocks), s.blocks)  # of each block
        self.free = list(range(s.blocks))
        rng.shuffle(self.free)
        for block in range(s.blocks):
            poison(self.cache, block, block)
        poison(self.cache, s.blocks, 0)  # the scratch block; that of window blocks may be read, and masked
        self.decoder = NativeDecoder(self.whole, self.cache)
        self.adapters = [f"adapter-{i}" for i in range(adapters)]
        for name in self.adapters:
            self.decoder.load_adapter(name, random_adapter(rng, self.whole))
        self.decoding: list[Decoding] = []

    def step(self) -> Step:
        """A step over some of the sequences, whose lengths it moves on."""
        rng = self.rng
        for _ in range(rng.randint(0, 3)):
            self.decoding.append(Decoding(rng.choice(("", *self.adapters))))
        rng.shuffle(self.decoding)
        sequences: list[SequenceRows] = []
        adapters: list[str] = []
        for sequence in self.decoding[: rng.randint(1, 9)]:
            if count := self._grow(sequence):
                row = sequences[-1].row + sequences[-1].count if sequences else 0
                tables = list(sequence.table), self._window_table(sequence)
                sequences.append(SequenceRows(row, count, sequence.length, *tables))
                adapters.append(sequence.adapter)
                sequence.length += count
        rows = sum(sequence.count for sequence in sequences)
        read = [rng.randrange(rows) for _ in range(rng.choice((0, 1, 3, rows)))] if rows else []
        read += [sequence.row + sequence.count - 1 for sequence in sequences]
        return self.packed(sequences, adapters, read, rng.choice((0, 0, 1, 5)) if rows else 0)

    def finish_some(self) -> None:
        """Their blocks are free, and hold no numbers."""
        kept = [each for each in self.decoding if each.length < self.sizes.max_model_len and self.rng.random() < 0.8]
        for sequence in self.decoding:
            if sequence not in kept:
                self.free += sequence.table
                for block in sequence.table:
                    poison(self.cache, block, self.window_blocks[block])
        self.decoding = kept

    def _window_table(self, sequence: Decoding) -> list[int]:
        """The window blocks of what its next token sees, and the scratch block for the others."""
        if not self.cache.num_window_blocks:
            return []
        seen = max(0, sequence.length - (window_of(self.cache.shapes) or 1) + 1) // self.cache.block_size
        return [
            self.window_blocks[block] if at >= seen else self.cache.num_window_blocks
            for at, block in enumerate(sequence.table)
        ]

    def _grow(self, sequence: Decoding) -> int:
        """How many tokens it gets, as blocks allow."""
        size, room = self.sizes.block_size, self.sizes.max_model_len - sequence.length
        count = min(room, self.rng.choice((1, 1, 1, 3, 8, 40, 150, 300)))
        while len(sequence.table) * size < sequence.length + count and self.free:
            sequence.table.append(self.free.pop())
        return min(count, len(sequence.table) * size - sequence.length)

    def packed(
        self, sequences: Sequence[SequenceRows], adapters: Sequence[str], read: Sequence[int], padding: int = 0
    ) -> Step:
        """A step of random tokens over these rows, each sequence's with its adapter if any; logits of rows `read`."""
        vocabulary, choice = self.sizes.vocabulary, self.rng.choice
        positions = [sequence.start + i for sequence in sequences for i in range(sequence.count)]
        token_ids = [choice((0, vocabulary - 1, self.rng.randrange(vocabulary))) for _ in positions]
        owned = zip(sequences, adapters, strict=True)
        return Step(
            torch.tensor(token_ids + [0] * padding, dtype=torch.long),
            torch.tensor(positions + [0] * padding, dtype=torch.long),
            AttentionPlan(self.cache, sequences, len(positions) + padding, 1, CPU),
            tuple(sequences),
            torch.tensor(read, dtype=torch.long),
            (),
            adapter_rows=tuple(
                AdapterRows(sequence.row, sequence.count, adapter) for sequence, adapter in owned if adapter
            ),
        )


def _check_step(engine: RandomEngine) -> None:
    """The same finite logits with any number of threads."""
    step, found = engine.step(), []
    for threads in engine.rng.sample((1, 2, 3, 4), 2):
        torch.set_num_threads(threads)
        found.append(engine.decoder(step))
    assert bool(found[0].isfinite().all()), "the step read what it does not own"
    assert torch.equal(found[0], found[1]), "the step depends on the number of threads"
    engine.finish_some()


def _check_attention(rng: random.Random) -> None:
    """Attention as other forwards call it: values of another size, a bias by distance."""
    kv_heads, key_dim, value_dim = rng.randint(1, 3), rng.choice((3, 16, 24, 80)), rng.choice((1, 16, 40))
    heads, length, size = kv_heads * rng.choice((1, 2, 5, 130)), rng.choice((1, 9, 128, 300)), rng.choice((1, 5, 16))
    blocks = -(-length // size)
    cache = KVCache([LayerShape(kv_heads, key_dim, value_dim)], blocks, size, rng.choice(KV_DTYPES), CPU)
    for block in range(blocks + 1):
        poison(cache, block, block)
    bias = DistanceBias(noise(rng, heads, length)) if rng.random() < 0.5 else None
    sinks = rng.choice((None, noise(rng, heads)))
    spec = AttentionSpec(0.3, rng.choice((None, 1, 40, 150)), rng.choice((None, 15.0)), bias, sinks)
    table = rng.sample(range(blocks), blocks)
    done = 0
    while done < length:
        count = min(length - done, rng.choice((1, 7, 64, 300)))
        plan = AttentionPlan(cache, [SequenceRows(0, count, done, table)], count, 1, CPU)
        key, value = noise(rng, count, kv_heads, key_dim), noise(rng, count, kv_heads, value_dim)
        out = plan.attend(0, noise(rng, count, heads, key_dim), key, value, spec)
        assert bool(out.isfinite().all()), "attention read what it does not own"
        done += count


def _guarded_zeros(shape: tuple[int, ...], dtype: torch.dtype, huge: bool = False) -> Tensor:
    """As `memory.lazy_zeros`, from the allocator that the sanitizer watches."""
    return torch.zeros(shape, dtype=dtype)


def drive(kernels: Library, seed: int, seconds: float) -> int:
    """Random models, and steps through them, on these kernels for that long. How many models."""
    native_library.load = lambda: kernels  # type: ignore[assignment]
    for module in (kv_cache, native_library, native_linear):
        module.__dict__["lazy_zeros"] = _guarded_zeros
    models, until = 0, time.monotonic() + seconds
    combinations = [(precision, dtype) for precision in PRECISIONS for dtype in KV_DTYPES]
    while time.monotonic() < until or models < len(combinations):
        rng = random.Random(f"{seed} {models}")
        engine = RandomEngine(
            rng, *combinations[models % len(combinations)], Sizes.random(rng), rng.choice((0, 0, 1, 3))
        )
        for _ in range(rng.randint(1, 12)):
            _check_step(engine)
        _check_attention(rng)
        models += 1
    return models


def main() -> int:
    level, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    kernels = open_library(level, sanitized=True)
    if not isinstance(kernels, Library):
        print(f"no sanitized kernels for {level}: {kernels}", file=sys.stderr)
        return 2
    with torch.inference_mode():
        print(drive(kernels, seed, seconds), "models")
    return 0


if __name__ == "__main__":
    sys.exit(main())
