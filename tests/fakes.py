"""Fakes of the seams, usable from a REPL.

>>> from tests.fakes import *
>>> core = make_core(FakeRunner(), num_blocks=8, block_size=4)
>>> core.add(make_request("a", range(10), max_tokens=3)); core.add(make_request("b", range(9), max_tokens=2))
>>> core.step(); print({s.request.id: s.block_table for s in core.scheduler.running})
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from service.engine.client.engine import Engine, EngineFailed, EngineState
from service.engine.client.streams import Streams
from service.engine.kv_cache.block_manager import BlockManager
from service.engine.kv_cache.window import WindowPool
from service.engine.process.core import Clock, EngineCore, ModelRunner
from service.engine.protocol.messages import (
    EngineInfo,
    EngineStats,
    Pooling,
    Profile,
    Profiled,
    Request,
    SamplingParams,
    StepOutput,
    StepRecord,
    TokenLogprobs,
)
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.scheduler import Scheduler
from service.engine.sequences.batch import Batch, BlockCopy, SampledToken, Scheduled
from service.engine.sequences.sequence import Sequence
from service.errors import Unavailable
from tests.profiles import FakeRecorder

VOCABULARY = 97
_RUBBISH = ("", -1, -1)


@dataclass
class FakeClock:
    """Seconds that pass only when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def next_token(seed: int, salt: str, context: Iterable[int]) -> int:
    """The fake model: a token that depends on every token before it, on their order and on the seed."""
    digest = hashlib.sha256(repr((seed, salt, list(context))).encode()).digest()
    return int.from_bytes(digest[:4], "big") % VOCABULARY


def expected_tokens(request: Request) -> list[int]:
    """What `request` must generate, computed with no engine: alone, or in any crowd."""
    context, output = list(request.token_ids), list[int]()
    params = request.params
    while len(output) < params.max_tokens:
        token = _sample(request, context, len(output))
        context.append(token)
        output.append(token)
        if token in params.stop_token_ids and len(output) > params.min_tokens:
            break
    return output


STATES = 4


def fake_state(context: list[int]) -> list[float]:
    """The fake model's hidden state of the last of these tokens."""
    return [1.0, *(float(next_token(seed, "", context)) for seed in range(1, STATES))]


def fake_pooled(total: Iterable[float]) -> bytes:
    """The mean of states with this sum."""
    count, *others = total
    return array("f", (count, *(each / count for each in others))).tobytes()


def expected_vector(request: Request) -> bytes:
    """The vector of `request`, computed with no engine."""
    states = [fake_state(list(request.token_ids[:end])) for end in range(1, len(request.token_ids) + 1)]
    match request.params.pooling:
        case Pooling.LAST:
            states = states[-1:]
        case Pooling.CLS:
            states = states[:1]
    return fake_pooled(map(sum, zip(*states, strict=True)))


def _sample(request: Request, context: list[int], position: int) -> int:
    """Stop tokens are banned from the first `min_tokens` outputs, as the sampler does."""
    params = request.params
    token = next_token(params.seed, request.cache_salt + request.adapter, context)
    while position < params.min_tokens and token in params.stop_token_ids:
        token = (token + 1) % VOCABULARY
    return token


@dataclass
class FakeRunner:
    """A model whose KV cache holds the token ids themselves, so that a wrong block, slot, position or owner changes the
    output. `broken` holds ids of requests that get no usable logits."""

    vocab_size = 1 << 20
    no_states = ""
    verifies_drafts = True
    draft_model = None
    grammars = None
    block_size: int = 4
    broken: frozenset[str] = frozenset()
    kv: dict[tuple[int, int], tuple[str, int, int]] = field(default_factory=dict)
    adapters: set[str] = field(default_factory=set)
    batches: list[list[tuple[str, int]]] = field(default_factory=list)
    num_disk_blocks: int = 0
    window: int = 0
    """With window blocks: the last tokens that a token also sees in these; else 0."""
    num_window_blocks: int = 0
    step_tokens: int = 9
    window_kv: dict[tuple[int, int], tuple[str, int, int]] = field(default_factory=dict)
    disk_blocks: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    windows_on_disk: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    fails: Callable[[BlockCopy], bool] = lambda copy: False
    took: Callable[[int, int], None] = lambda tokens, copies: None
    """Called with the tokens, or the copies, of every step: where a test lets time pass."""

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        """Raises ValueError for the directory "broken", and its result for "unfit"."""
        if directory == "broken":
            raise ValueError("its files do not fit")
        return partial(self._attach, name, directory)

    def load_adapter(self, name: str, directory: str) -> None:
        self.read_adapter(name, directory)()

    def _attach(self, name: str, directory: str) -> None:
        if directory == "unfit":
            raise ValueError("no layer for it")
        self.adapters.add(name)

    def unload_adapter(self, name: str) -> None:
        self.adapters.remove(name)

    def windows(self) -> WindowPool | None:
        if not self.window:
            return None
        return WindowPool(self.num_window_blocks, self.window, self.block_size, self.step_tokens)

    def recorder(self, kind: str) -> FakeRecorder:
        return FakeRecorder(kind)

    def copy(self, copies: Iterable[BlockCopy]) -> list[BlockCopy]:
        """Those fail for which `fails` is true; what they would have written is rubbish. Nobody may ask for a disk
        block whose writing failed in an earlier step."""
        failed, copies = list[BlockCopy](), list(copies)
        self.took(0, len(copies))
        for each in copies:
            unwritten = each.restores and any(
                each.disk_block == other.disk_block for other in failed if not other.restores
            )
            if self.fails(each) or unwritten:
                failed.append(each)
                held = [_RUBBISH] * self.block_size
                self.disk_blocks.pop(each.disk_block, None)
                self.windows_on_disk.pop(each.disk_block, None)
            elif each.restores:
                assert each.disk_block in self.disk_blocks, "a disk block that holds nothing"
                held = self.disk_blocks[each.disk_block]
            else:
                held = self.disk_blocks[each.disk_block] = [self.kv[each.block, at] for at in range(self.block_size)]
            self.kv |= {(each.block, at): one for at, one in enumerate(held) if each.restores}
            self._copy_window(each)
        return failed

    def _copy_window(self, copy: BlockCopy) -> None:
        nothing = [_RUBBISH] * self.block_size
        if copy.window_block is None:
            if not copy.restores:
                self.windows_on_disk.pop(copy.disk_block, None)
        elif copy.restores:
            held = self.windows_on_disk.get(copy.disk_block, nothing)
            self.window_kv |= {(copy.window_block, at): one for at, one in enumerate(held)}
        elif copy.disk_block in self.disk_blocks:
            held = [self.window_kv[copy.window_block, at] for at in range(self.block_size)]
            self.windows_on_disk[copy.disk_block] = held

    def run(self, batch: Batch) -> list[SampledToken | None]:
        missing = {item.sequence.request.adapter for item in batch.scheduled} - self.adapters - {""}
        if missing:
            raise KeyError(f"no adapter {min(missing)}")
        self.took(batch.num_tokens, 0)
        self.batches.append([(item.sequence.request.id, item.num_tokens) for item in batch.scheduled])
        for item in batch.scheduled:
            self._write(item)
        return [self._result(item) for item in batch.scheduled]

    def _write(self, item: Scheduled) -> None:
        sequence = item.sequence
        for position, token in enumerate(item.token_ids, sequence.num_computed_tokens):
            self.kv[self._slot(sequence, position)] = (_owner(sequence.request), position, token)
            if self.window:
                self.window_kv[self._window_slot(sequence, position)] = self.kv[self._slot(sequence, position)]

    def _read(self, sequence: Sequence, length: int, row: int | None = None) -> list[int]:
        """The tokens of the first positions, as the row at position `row` sees them; by default the last one."""
        context, row = [], length - 1 if row is None else row
        for position in range(length):
            slot = self._slot(sequence, position)
            assert slot in self.kv, "a slot that nobody has written"
            held = owner, written_at, token = self.kv[slot]
            right = (owner, written_at) == (_owner(sequence.request), position)
            if self.window and position > row - self.window:
                right &= self.window_kv[self._window_slot(sequence, position)] == held
            context.append(token if right else -1)
        return context

    def _window_slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        block = sequence.window_table[position // self.block_size]
        assert 0 <= block < self.num_window_blocks, "no window block for what a token sees"
        return block, position % self.block_size

    def _slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        return sequence.block_table[position // self.block_size], position % self.block_size

    def _result(self, item: Scheduled) -> SampledToken | None:
        sequence, prompt_logprobs = item.sequence, self._prompt_logprobs(item)
        if sequence.request.params.pooling is not None:
            return self._pooled(item)
        if not item.samples:
            return SampledToken(None, prompt_logprobs=prompt_logprobs) if prompt_logprobs else None
        if sequence.request.id in self.broken:
            return SampledToken(None)
        first, *following = self._sampled(item)
        return replace(first, prompt_logprobs=prompt_logprobs, following=tuple(following))

    def _sampled(self, item: Scheduled) -> Iterator[SampledToken]:
        """One token, and one more behind each draft that came true."""
        sequence, request = item.sequence, item.sequence.request
        for position, draft in enumerate((*item.draft_token_ids, None), sequence.num_output_tokens):
            context = self._read(sequence, sequence.num_prompt_tokens + position)
            token = _sample(request, context, position)
            logprobs = None if request.params.logprobs is None else TokenLogprobs(-0.5, ((token, -0.5),))
            yield SampledToken(token, logprobs)
            if token != draft:
                return

    @staticmethod
    def _prompt_logprobs(item: Scheduled) -> tuple[TokenLogprobs, ...]:
        """That of position p is -p, so that a test sees which came."""
        sequence = item.sequence
        if sequence.request.params.prompt_logprobs is None:
            return ()
        start = sequence.num_computed_tokens
        stop = min(start + item.num_tokens, sequence.num_prompt_tokens)
        first = max(start, sequence.request.params.prompt_logprobs_start)
        return tuple(TokenLogprobs(-float(position)) for position in range(first, stop))

    def _pooled(self, item: Scheduled) -> SampledToken | None:
        """A row's state is made of all tokens up to it; the first number is that of rows."""
        sequence, end = item.sequence, item.sequence.num_computed_tokens + item.num_tokens
        start, kind = sequence.num_computed_tokens, sequence.request.params.pooling or Pooling.LAST
        wanted = {Pooling.MEAN: range(start, end), Pooling.CLS: range(start, 1), Pooling.LAST: range(end - 1, end)}
        total = sequence.state_sum or array("d", bytes(8 * STATES))
        for position in wanted[kind] if kind is not Pooling.LAST or end == sequence.num_tokens else ():
            state = fake_state(self._read(sequence, position + 1))
            total = array("d", (a + b for a, b in zip(total, state, strict=True)))
        sequence.state_sum = total
        if end < sequence.num_tokens:
            return None
        return SampledToken(None, pooled=b"" if sequence.request.id in self.broken else fake_pooled(total))


DECODER_START = (90, 91)


class EncodingRunner(FakeRunner):
    """As an encoder-decoder model's: what lies at the encoder's positions depends on the whole input, which is written
    in one step; the decoder starts with DECODER_START."""

    def _write(self, item: Scheduled) -> None:
        super()._write(item)
        sequence, start, slots = item.sequence, item.sequence.num_computed_tokens, item.sequence.num_encoder_slots
        assert start >= slots or (start == 0 and item.num_tokens > slots), "an encoder's input in parts"
        for position in range(start, slots):
            written = (_owner(sequence.request), position, _encoded(sequence.request))
            self.kv[self._slot(sequence, position)] = written

    def _read(self, sequence: Sequence, length: int, row: int | None = None) -> list[int]:
        held, slots = super()._read(sequence, length, row), sequence.num_encoder_slots
        is_whole = held[:slots] == [_encoded(sequence.request)] * slots
        assert tuple(held[slots : slots + len(DECODER_START)]) == DECODER_START
        return [*(sequence.request.token_ids if is_whole else [-1]), *held[slots + len(DECODER_START) :]]


def _encoded(request: Request) -> int:
    return hash(request.token_ids)


def _owner(request: Request) -> str:
    return request.cache_salt + request.adapter


def make_request(id: str, token_ids: Iterable[int] = (1, 2, 3), **fields: Any) -> Request:
    """A request; keyword arguments are fields of Request or of SamplingParams."""
    params = {name: fields.pop(name) for name in list(fields) if name in SamplingParams.__dataclass_fields__}
    return Request(id, tuple(token_ids), SamplingParams(**{"max_tokens": 4, **params}), **fields)


def make_scheduler(
    num_blocks: int = 16,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    prefix_caching: bool = True,
    blocks: BlockManager | None = None,
    speculation: bool = False,
) -> Scheduler:
    """A scheduler with a target no step reaches, so that budgets are the configured maximum."""
    policy = BatchingPolicy(max_num_batched_tokens, block_size, inter_token_latency_target=1e9)
    blocks = blocks or BlockManager(num_blocks, block_size, prefix_caching)
    return Scheduler(blocks, policy, max_num_seqs, max_model_len=1024, speculation=speculation)


def make_core(runner: ModelRunner | None = None, clock: Clock | None = None, **scheduler: Any) -> EngineCore:
    """A core on the fake runner; keyword arguments are those of `make_scheduler`."""
    scheduler_ = make_scheduler(**scheduler)
    return EngineCore(runner or FakeRunner(scheduler_.blocks.block_size), scheduler_, clock or FakeClock())


def run_all(core: EngineCore, max_steps: int = 10_000) -> dict[str, list[StepOutput]]:
    """Step until nothing is left; the outputs of each request. Raises RuntimeError when it takes too many steps."""
    outputs: dict[str, list[StepOutput]] = {}
    for _ in itertools.takewhile(lambda _: core.has_work, range(max_steps)):
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
    if core.has_work:
        raise RuntimeError(f"not done after {max_steps} steps: {core.stats}")
    return outputs


def tokens_of(outputs: Iterable[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


class InProcessEngine:
    """`EngineClient`'s interface over a core in this process, stepped by an asyncio task: for tests of what is above
    the engine. What became of its requests can be read from `core.stats`."""

    def __init__(self, core: EngineCore | None = None, step_seconds: float = 0.0) -> None:
        self.core = core or make_core(clock=time.monotonic, num_blocks=1024, block_size=16, max_num_batched_tokens=2048)
        self.state = EngineState.NEW
        self.info: EngineInfo | None = None
        self.pid: int | None = os.getpid()
        self.restarts = 0
        self.why_not_ready = ""
        self.silent_seconds = 0.0
        self._step_seconds = step_seconds
        self._streams = Streams()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def stats(self) -> EngineStats:
        return self.core.stats

    @property
    def recent_steps(self) -> tuple[StepRecord, ...]:
        return ()

    @property
    def replicas(self) -> tuple[Engine, ...]:
        return (self,)

    async def start(self, on_loading: Callable[[str, float], None] | None = None) -> None:
        if on_loading:
            on_loading("weights", 1.0)
        blocks = self.core.scheduler.blocks
        self.info = fake_info(blocks.num_blocks, blocks.block_size)
        self.state = EngineState.READY
        self._task = asyncio.create_task(self._run())

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        if self.state is not EngineState.READY:
            raise Unavailable(f"the engine is {self.state}")
        stream = self._streams.open(request)
        for each in self._streams.to_give():
            self.core.add(each)
        self._work.set()
        try:
            while True:
                output = await stream.next()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            if self._streams.close(stream):
                self.core.abort([request.id])
                self._work.set()

    async def load_adapter(self, name: str, directory: str) -> None:
        if self.state is not EngineState.READY:
            raise Unavailable(f"the engine is {self.state}")
        self.core.load_adapter(name, directory)

    def unload_adapter(self, name: str) -> None:
        self.core.unload_adapter(name)

    async def profile(self, order: Profile) -> Profiled:
        raise Unavailable("an engine in this process makes no profiles")

    async def stop(self, grace: float = 0.0) -> None:
        self.state = EngineState.STOPPED
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._streams.fail(lambda: EngineFailed("the engine was stopped"))

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            while self.core.has_work:
                self._streams.give(self.core.step())
                await asyncio.sleep(self._step_seconds)
            self._work.clear()


def fake_info(num_blocks: int, block_size: int) -> EngineInfo:
    return EngineInfo(
        pid=os.getpid(),
        device="cpu",
        dtype="fp32",
        precision="fp32",
        forward="fake",
        threads=1,
        memory_bytes=0,
        load_seconds=0.0,
        block_size=block_size,
        blocks_total=num_blocks,
        kv_bytes_per_block=1024,
    )
