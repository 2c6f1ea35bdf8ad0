"""A chat whose blocks had to go to the offload file answers as one that was never there: tokens, logprobs and keys and
values are the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from service.engine.process.core import EngineCore
from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.offload_file import OffloadFile
from service.engine.sequences.batch import BlockCopy
from tests.golden.tiny import SEQ2SEQ, SPECIAL, VOCABULARY, Answer, Loaded, answer, save_int8, save_tiny

BLOCKS = 30
BLOCK_SIZE = 8
MODELS = [
    ("llama", "bf16", "auto"),
    ("llama", "bf16", "int8"),
    ("llama", "int8", "int8"),
    ("gemma2", "fp32", "auto"),
    ("t5", "bf16", "auto"),
]
GREEDY = SamplingParams(max_tokens=8, logprobs=2)
SEEDED = SamplingParams(max_tokens=8, temperature=1.0, seed=77, logprobs=2)


def offloading(name: str, precision: str, kv: str, directory: Path) -> Loaded:
    source = save_tiny(name, directory / name)
    if precision == "int8":
        source = save_int8(source, directory / "int8")
    more: dict[str, Any] = {"decoder_start": (SPECIAL["decoder_start_token_id"],)} if name in SEQ2SEQ else {}
    more |= {"kv_offload_bytes": 1 << 24, "offload_directory": str(directory), "kv_cache_dtype": kv}
    loaded = Loaded.of(source, precision, block_size=BLOCK_SIZE, kv_cache_bytes=1 << 22, **more)
    assert loaded.runner.num_disk_blocks >= 100
    return loaded


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    name, precision, kv = request.param
    return offloading(name, precision, kv, tmp_path_factory.mktemp("offloading"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return offloading("llama", "bf16", "auto", tmp_path_factory.mktemp("planted"))


def chat(seed: int, length: int = 150) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, VOCABULARY) for _ in range(length))


def one(core: EngineCore, id: str, token_ids: Iterable[int], params: SamplingParams = GREEDY) -> Answer:
    return answer(core, {0: [Request(id, tuple(token_ids), params)]})[id]


def push_out(core: EngineCore) -> None:
    """Others that need all of the pool."""
    for other in (100, 101):
        one(core, f"other {other}", chat(other, 220))


def kv_of(loaded: Loaded, core: EngineCore, request: Request) -> list[torch.Tensor]:
    """Keys and values of the prompt's whole blocks, once they are computed or restored."""
    core.add(request)
    while not core.scheduler.running or core.scheduler.running[0].num_computed_tokens < len(request.token_ids):
        core.step()
    table = core.scheduler.running[0].block_table[: len(request.token_ids) // BLOCK_SIZE]
    cache = loaded.runner.cache
    found = [tensor[table].clone() for tensor in (*cache.keys, *cache.values)]
    core.abort([request.id])
    core.step()
    return found


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_restored_is_as_cold(loaded: Loaded, params: SamplingParams) -> None:
    asked = Request("next", chat(1), params)
    cold = answer(loaded.core(caching=False), {0: [asked]})["next"]
    cold_kv = kv_of(loaded, loaded.core(caching=False), asked)
    core = loaded.core(blocks=BLOCKS)
    one(core, "first", chat(1), SamplingParams(max_tokens=1))
    push_out(core)
    restored_kv = kv_of(loaded, core, replace(asked, id="kv"))
    push_out(core)
    before = core.stats.restored_tokens_total
    warm = answer(core, {0: [asked]})["next"]
    whole = 150 if loaded.config.decoder_start else 144
    assert warm.num_cached_tokens == whole, "an encoder's input, or all whole blocks"
    assert core.stats.restored_tokens_total - before >= 144 - 4 * BLOCK_SIZE, "nearly all of them from the file"
    assert (warm.token_ids, warm.logprobs) == (cold.token_ids, cold.logprobs)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(restored_kv, cold_kv, strict=True))
    core.scheduler.check_integrity()


def test_crowds_under_pressure_answer_as_alone(loaded: Loaded) -> None:
    """Chats that come back again and again to a pool too small for two of them."""
    rng = random.Random(3)
    turns = [Request(f"{c}-{t}", chat(c, 40 + 30 * t), (GREEDY, SEEDED)[c % 2]) for c in range(5) for t in range(4)]
    alone = {each.id: answer(loaded.core(caching=False), {0: [each]})[each.id] for each in turns}
    core = loaded.core(budget=64, blocks=BLOCKS, speculation=True)
    found: dict[str, Answer] = {}
    for _ in range(3):
        rng.shuffle(turns)
        for some in (turns[at : at + 4] for at in range(0, len(turns), 4)):
            found |= answer(core, {0: some[:2], 2: some[2:]})
            core.scheduler.check_integrity()
            for each in some:
                assert found[each.id].token_ids == alone[each.id].token_ids
                assert found[each.id].logprobs == alone[each.id].logprobs
    assert core.stats.restored_tokens_total > 0


def _skips(real: Callable[..., list[BlockCopy]]) -> Callable[..., list[BlockCopy]]:
    return lambda self, copies: real(self, [each for each in copies if not each.restores])


def _takes_the_next_slot(real: Callable[..., list[BlockCopy]]) -> Callable[..., list[BlockCopy]]:
    def copy(self: OffloadFile, copies: list[BlockCopy]) -> list[BlockCopy]:
        return real(self, [replace(each, disk_block=each.disk_block ^ 1) if each.restores else each for each in copies])

    return copy


@pytest.mark.parametrize("planted", [_skips, _takes_the_next_slot])
def test_a_planted_defect_shows(
    llama: Loaded, planted: Callable[..., Callable[..., list[BlockCopy]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = one(llama.core(caching=False), "cold", chat(1))
    core = llama.core(blocks=BLOCKS)
    one(core, "first", chat(1))
    push_out(core)
    monkeypatch.setattr(OffloadFile, "copy", planted(OffloadFile.copy))
    assert one(core, "next", chat(1)).logprobs != cold.logprobs


@pytest.mark.parametrize(
    "without", [{"offload_directory": "/nowhere"}, {"kv_offload_bytes": 0}, {"prefix_caching": False}]
)
def test_an_engine_without_a_file_serves(llama: Loaded, without: dict[str, Any]) -> None:
    config = llama.config
    fields = {"kv_offload_bytes": 1 << 20, "offload_directory": config.offload_directory, **without}
    bare = Loaded.of(Path(config.model_dir), "bf16", block_size=BLOCK_SIZE, kv_cache_bytes=1 << 22, **fields)
    assert bare.runner.num_disk_blocks == 0
    core = bare.core(blocks=BLOCKS)
    first = one(core, "first", chat(1))
    push_out(core)
    assert one(core, "next", chat(1)).token_ids == first.token_ids
    assert (core.stats.blocks_offloaded, core.stats.restored_tokens_total) == (0, 0)
