"""Layers with a sliding window in fewer blocks: the same tokens and bitwise the same logprobs as with all blocks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.forwards.decoder import FusedDecoder
from service.engine.runner.forwards.foreign import PackedForward
from service.engine.runner.forwards.forward import CannotServe
from service.engine.runner.forwards.native_decoder import NativeDecoder
from tests.effort import usual
from tests.golden.conftest import Load
from tests.golden.test_invariance import _check, _library
from tests.golden.tiny import VOCABULARY, WINDOW, Loaded, answer
from tests.kernels import MAIN_KERNELS, TORCH, use

BLOCK_SIZE = 8
SEQUENCES = 4
MODELS = [
    ("gemma3_text", "int8", MAIN_KERNELS[0]),
    ("mistral", "bf16", MAIN_KERNELS[0]),
    ("gemma2", "bf16", MAIN_KERNELS[0]),
    ("gemma2", "bf16", TORCH),
    ("gpt_oss", "bf16", MAIN_KERNELS[0]),
]


def both(directory: Path, precision: str) -> tuple[Loaded, Loaded]:
    """The model with room for all that its sequences may need, and with room for 0.6 of that, so that its windows get
    blocks of their own."""
    sizes = {"block_size": BLOCK_SIZE, "max_num_seqs": SEQUENCES, "max_num_batched_tokens": 256}
    whole = Loaded.of(directory, precision, **sizes)
    assert whole.info.window_blocks_total == 0, "there is room for all"
    assert whole.info.kv_cache_bytes == whole.info.blocks_total * whole.info.kv_bytes_per_block
    room = int(0.6 * whole.info.kv_cache_bytes)
    loaded = Loaded.of(directory, precision, kv_cache_bytes=room, **sizes)
    assert 0 < loaded.info.window_blocks_total < loaded.info.blocks_total
    assert loaded.info.kv_cache_bytes <= room < loaded.info.blocks_total * loaded.info.kv_bytes_per_block
    return whole, loaded


@pytest.mark.parametrize(
    ("name", "precision", "kernels"),
    usual(MODELS, *MODELS[:2]),
)
def test_alone_or_in_a_crowd(
    load: Load, name: str, precision: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kernels, monkeypatch)
    whole, loaded = both(Path(load(name, precision).config.model_dir), precision)
    assert loaded.info.forward == whole.info.forward == "decoder"
    compare(whole, loaded)
    _check(loaded, VOCABULARY, 4)


@pytest.mark.parametrize("packed", usual([True, False], True))
def test_through_the_library(load: Load, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's forwards read the same blocks."""

    def refuse(*args: object) -> None:
        raise CannotServe("refused by the test")

    for way in (NativeDecoder, FusedDecoder, *((PackedForward,) if not packed else ())):
        monkeypatch.setattr(way, "__init__", refuse)
    whole, loaded = both(Path(load("gemma2", "fp32").config.model_dir), "fp32")
    assert loaded.info.forward == whole.info.forward == "transformers"
    assert loaded.runner.forward.attends == packed
    compare(whole, loaded)


def compare(whole: Loaded, loaded: Loaded) -> None:
    for request in _library(random.Random(5), VOCABULARY, 6):
        assert answer(loaded.core(), {0: [request]}) == answer(whole.core(), {0: [request]})


def test_a_chat_goes_on_and_its_beginning_is_computed_again(load: Load) -> None:
    """The second turn finds the first one whole. A branch from its middle, whose windows others needed, finds none."""
    whole, loaded = both(Path(load("gemma3_text", "bf16").config.model_dir), "bf16")
    core, rng = loaded.core(), random.Random(2)
    pool = core.scheduler.blocks._windows
    assert pool is not None and pool.window == WINDOW

    def ask(name: str, token_ids: list[int]) -> int:
        request = Request(name, tuple(token_ids), SamplingParams(max_tokens=8, logprobs=1))
        found = answer(core, {0: [request]})[name]
        alone = answer(whole.core(caching=False), {0: [request]})[name]
        assert (found.token_ids, found.logprobs) == (alone.token_ids, alone.logprobs)
        return found.num_cached_tokens

    chat = [rng.randrange(3, VOCABULARY) for _ in range(160)]
    assert ask("first", chat) == 0
    assert ask("second", [*chat, *chat[:40]]) == 160
    branch = [*chat[:100], *chat[:20]]
    assert ask("branch", branch) == 96, "no other sequence has needed the place"
    for number in range(4):  # others take the places that were needed longest ago
        ask(f"other {number}", [rng.randrange(3, VOCABULARY) for _ in range(150)])
    assert ask("third", [*chat, *chat[:40]]) in (0, 160, 192)
    core.scheduler.check_integrity()
