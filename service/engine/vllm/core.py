"""vLLM's engine as a core of our loop: requests in our words go in, outputs of one step come out.

This is the only module that touches vLLM, whose interfaces move with its releases: `releases` says which ones it was
tested with. It runs in vLLM's own interpreter, with vLLM's scheduler and cache in this process. With
tensor or pipeline parallelism, vLLM starts the processes of the other ranks and ends them with this one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from vllm import EngineArgs, LLMEngine, SamplingParams, __version__
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from service.engine.process.grammar_loading import CompiledGrammars
from service.engine.process.heartbeat import Report
from service.engine.process.validation import check_request
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import EngineInfo, EngineStats, FinishReason, Request, StepOutput, StepRecord
from service.engine.protocol.profiling import NamedPart, Recorder
from service.engine.vllm import mapping
from service.engine.vllm.ranks import rank_cache_bytes, resident_bytes
from service.engine.vllm.rendezvous import gathered
from service.engine.vllm.tally import StepFacts, StepLogger, Tally
from service.engine.vllm.weights import written_for_peft, written_for_vllm

_CAUSE_SECONDS: Final = 1.0
NO_ADAPTERS: Final = (
    "this engine was started without room for adapters: unload the version, and load it with "
    '"engine_options": {"max_loras": 4}'
)


@dataclass(slots=True)
class _Live:
    """A request that vLLM computes. `tokens` are those of its prompt and of what it gave out."""

    request: Request
    tokens: int
    has_first: bool = False
    num_steps: int = 0
    own_seconds: float = 0.0
    """As `turnover.Answer`; vLLM tells of no step that computed a prompt in part."""
    sequences: int = 0


class VllmCore:
    """One thread calls it, but for `read_adapter` and `forecast_seconds`."""

    def __init__(self, engine: Any, steps: StepLogger, tally: Tally, config: EngineConfig, vocab_size: int) -> None:
        self.grammars = CompiledGrammars(None)
        self.parts: tuple[NamedPart, ...] = ()
        self._engine = engine
        self._steps = steps
        self._tally = tally
        self._config = config
        self._vocab_size = vocab_size
        self._live: dict[str, _Live] = {}
        self._ended: list[StepOutput] = []
        self._adapters: dict[str, LoRARequest] = {}
        self._leaving: set[str] = set()
        self._adapters_made = 0
        self._in_step = False

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._ended)

    def add(self, request: Request) -> None:
        """Queues a request. It ends with ERROR in the next step's outputs if vLLM cannot compute it, and with ABORT if
        another process had it and it cannot go on here."""
        if not mapping.can_go_on(request):
            self._end(request.id, FinishReason.ABORT)
        elif len(request.emitted) >= request.params.max_tokens > 0:
            self._end(request.id, FinishReason.LENGTH)
        else:
            try:
                check_request(request, self._vocab_size)
                self._add(request)
            except ValueError:
                self._end(request.id, FinishReason.ERROR)

    def _add(self, request: Request) -> None:
        if request.params.pooling is not None or request.params.grammar:
            raise ValueError("no embeddings and no grammars")
        if request.adapter and (request.adapter not in self._adapters or request.adapter in self._leaving):
            raise ValueError(f"no adapter {request.adapter}")
        for name, least, most in ((each.parameter, each.least, each.most) for each in mapping.LIMITS):
            if not least <= getattr(request.params, name) <= most:
                raise ValueError(f"{name} is not from {least:g} to {most:g}")
        self._engine.add_request(
            request.id,
            mapping.prompt(request),
            SamplingParams(output_kind=RequestOutputKind.DELTA, **mapping.sampling(request)),
            lora_request=self._adapters.get(request.adapter),
            priority=mapping.priority(request),
        )
        self._live[request.id] = _Live(request, len(request.token_ids) + len(request.emitted))

    def abort(self, request_ids: Iterable[str]) -> None:
        self._stop(request_ids, FinishReason.ABORT)

    def step(self) -> list[StepOutput]:
        """Computes one step of vLLM and returns the news. What vLLM raises passes through: its core is broken then."""
        now = time.monotonic()
        late = [id for id, live in self._live.items() if (live.request.deadline or now) < now]
        self._stop(late, FinishReason.DEADLINE)
        outputs: list[StepOutput] = []
        if self._live:
            self._in_step = True
            kv_tokens = self._kv_tokens()
            started = time.monotonic()
            computed = [
                (self._live[each.request_id], each) for each in self._computed() if each.request_id in self._live
            ]
            seconds = time.monotonic() - started
            self._in_step = False
            facts, self._steps.facts = self._steps.facts, StepFacts()
            self._tally.observe(facts, kv_tokens, not all(live.has_first for live, _ in computed), seconds)
            outputs = [self._output(live, each, facts.sequences) for live, each in computed]
        ended, self._ended = self._ended, []
        if not self._live:
            self._tally.rest()
        self._free_adapters()
        return ended + outputs

    def _computed(self) -> list[Any]:
        try:
            return list(self._engine.step())
        except Exception:
            if mapping.num_ranks(self._config) > 1:  # another rank may have died of itself: who watches it says so
                time.sleep(_CAUSE_SECONDS)
            raise

    @property
    def stats(self) -> EngineStats:
        return self._tally.stats(self._waiting(), [live for live in self._live.values() if live.has_first])

    def take_steps(self) -> tuple[StepRecord, ...]:
        return self._tally.take_steps()

    def forecast_seconds(self) -> float | None:
        """Returns the forecast of the step in progress. The heartbeat's thread calls it during a step, which is when no
        request comes or goes."""
        return self._tally.forecast_seconds(self._kv_tokens(), self._waiting()) if self._in_step else None

    def keep_adapter(self, name: str) -> bool:
        self._leaving.discard(name)
        return name in self._adapters

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        """Writes the adapter as PEFT has it. Returns the call that gives it to vLLM. Both raise what stops them."""
        if not self._config.options.get("max_loras"):
            raise ValueError(NO_ADAPTERS)
        rank = self._config.options["max_lora_rank"]
        path = written_for_peft(directory, self._config.offload_directory, name, rank)
        return lambda: self._attach(name, path)

    def unload_adapter(self, name: str) -> None:
        if name in self._adapters:
            self._leaving.add(name)
            self._free_adapters()

    def recorder(self, kind: str) -> Recorder:
        raise ValueError("vLLM's steps are not recorded; its own profiler is not behind this route")

    def _attach(self, name: str, path: str) -> None:
        self._adapters_made += 1
        adapter = LoRARequest(name, self._adapters_made, path)
        self._engine.add_lora(adapter)
        self._adapters[name] = adapter

    def _free_adapters(self) -> None:
        if not self._leaving:
            return
        for name in self._leaving - {live.request.adapter for live in self._live.values()}:
            self._leaving.discard(name)
            self._engine.remove_lora(self._adapters.pop(name).lora_int_id)

    def _stop(self, request_ids: Iterable[str], reason: FinishReason) -> None:
        known = [id for id in request_ids if id in self._live]
        if known:
            self._engine.abort_request(known)
        for id in known:
            self._tally.end(self._live.pop(id))
            self._end(id, reason)

    def _end(self, request_id: str, reason: FinishReason) -> None:
        self._ended.append(StepOutput(request_id, finish_reason=reason))

    def _kv_tokens(self) -> int:
        return sum(live.tokens for live in tuple(self._live.values()) if live.has_first)

    def _waiting(self) -> Collection[int]:
        return [live.tokens for live in tuple(self._live.values()) if not live.has_first]

    def _output(self, live: _Live, computed: Any, sequences: int) -> StepOutput:
        completion, request = computed.outputs[0], live.request
        token_ids = tuple(completion.token_ids) if request.params.max_tokens else ()
        is_first, live.has_first = not live.has_first, True
        cached = computed.num_cached_tokens or 0
        self._tally.charge(live, live.tokens - cached if is_first else len(completion.token_ids))
        live.tokens += len(token_ids)
        live.sequences += sequences
        reason = completion.finish_reason and mapping.FINISHED.get(completion.finish_reason, FinishReason.ERROR)
        if reason:
            self._tally.end(self._live.pop(computed.request_id))
        wants, times = request.params.logprobs, computed.metrics
        logprobs = completion.logprobs if wants is not None and token_ids else None
        return StepOutput(
            request.id,
            token_ids,
            mapping.logprobs(token_ids, logprobs, wants) if logprobs and wants is not None else (),
            mapping.prompt_logprobs(request, computed.prompt_logprobs) if is_first else (),
            reason or None,
            cached,
            max(0.0, times.scheduled_ts - times.queued_ts) if is_first and times else None,
            max(0.0, times.first_token_ts - times.scheduled_ts) if is_first and times else None,
            live.sequences / live.num_steps if reason else None,
            times.num_preemptions if times else 0,
        )


def build(config: EngineConfig, report: Report) -> tuple[VllmCore, EngineInfo]:
    """Starts vLLM as `config` says. vLLM does not tell how far it is; the phases are ours."""
    started = time.monotonic()
    report("writing weights for vLLM", 0.0)
    model_dir = written_for_vllm(config.model_dir, config.precision, config.offload_directory, config.digest)
    rank_bytes = rank_cache_bytes(config, is_cpu=current_platform.is_cpu())
    arguments = mapping.engine_arguments(config, model_dir, rank_bytes)
    arguments |= gathered(config, rank_bytes, report)
    report("starting vLLM", 0.1)
    vllm_config = EngineArgs(**arguments).create_engine_config(UsageContext.ENGINE_CONTEXT)
    steps = StepLogger()
    engine = LLMEngine.from_vllm_config(vllm_config, stat_loggers=[lambda *_: steps])
    if mapping.has_stages(config):
        engine.collective_rpc("prepare_stage")
    report("starting vLLM", 1.0)
    cache, vocab_size = vllm_config.cache_config, vllm_config.model_config.get_vocab_size()
    token_budget = vllm_config.scheduler_config.max_num_batched_tokens
    tally = Tally(cache.num_gpu_blocks, token_budget, config.max_num_seqs)
    core = VllmCore(engine, steps, tally, config, vocab_size)
    for name, directory in config.adapters:
        core.read_adapter(name, directory)()
    total = (cache.kv_cache_memory_bytes or 0) * mapping.num_ranks(config)
    info = EngineInfo(
        pid=os.getpid(),
        device=current_platform.device_type,
        dtype=config.dtype,
        precision=config.precision,
        forward="vllm",
        version=__version__,
        threads=config.threads,
        memory_bytes=resident_bytes(),
        load_seconds=time.monotonic() - started,
        block_size=cache.block_size,
        blocks_total=cache.num_gpu_blocks,
        kv_bytes_per_block=total // cache.num_gpu_blocks,
        vocab_size=vocab_size,
        no_embeddings="its engine is vLLM, which serves generation alone here",
        no_grammars="Its engine is vLLM, whose grammars are others than ours: load the version with our own engine.",
        limits=mapping.LIMITS,
    )
    return core, info


def headless(
    config: EngineConfig, model_dir: str, cache_bytes: int, of_node: dict[str, Any], began: Callable[[], None]
) -> None:
    """Starts this node's ranks, calls `began` when they serve, and never returns: the ranks end with this process."""
    arguments = mapping.engine_arguments(config, model_dir, cache_bytes) | of_node
    vllm_config = EngineArgs(**arguments).create_engine_config(UsageContext.ENGINE_CONTEXT, headless=True)
    executor = MultiprocExecutor(vllm_config, monitor_workers=False)
    began()
    threading.Event().wait()
    executor.shutdown()
