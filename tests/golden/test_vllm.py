"""The real vLLM in its own interpreter, against our own engine on the same version: minutes, for vLLM compiles."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from service.engine.client.client import EngineClient
from service.engine.protocol.messages import FinishReason, StepOutput
from service.evaluation.host.machine import processor
from tests.fakes import tokens_of
from tests.vllm_engines import NIGHTLY, answer, engine, prompts, repository_at, request_of

pytestmark = [*NIGHTLY, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose `demo:1` is bf16 and `demo:2` int8; what vLLM compiles is kept for all tests."""
    return repository_at(tmp_path_factory.mktemp("vllm"))


async def firsts(client: EngineClient, asked: list[tuple[int, ...]]) -> list[tuple[int, float]]:
    """Returns the first token of each prompt, greedy, and its logprob."""
    requests = [request_of(f"f{n}", prompt, logprobs=1) for n, prompt in enumerate(asked)]
    answers = await asyncio.gather(*(answer(client, each) for each in requests))
    return [(each[0].token_ids[0], each[0].logprobs[0].logprob) for each in answers]


INT8 = (0.9, 0.5) if "avx512_vnni" in processor().features else (0.8, 1.5)


@pytest.mark.parametrize(("version", "agreement", "apart"), [("1", 0.95, 0.15), ("2", *INT8)])
async def test_first_tokens_and_logprobs_are_ours(data: Path, version: str, agreement: float, apart: float) -> None:
    """In int8 vLLM has the head in bf16 and rounds activations elsewhere: its tokens differ more often. On AVX2 alone
    vLLM's int8 is further from bf16 than ours: 105 and 111 of 120 first tokens, logprobs within 0.97 and 0.40."""
    asked = prompts(data, 120)
    async with engine(data, version, "dosirak") as own:
        ours = await firsts(own, asked)
    async with engine(data, version, "vllm") as other:
        theirs = await firsts(other, asked)
    same = [(our, their) for our, their in zip(ours, theirs, strict=True) if our[0] == their[0]]
    furthest = max(abs(our[1] - their[1]) for our, their in same)
    print(f"{len(same)} of {len(asked)} first tokens are ours, and their logprobs within {furthest:.3f}")
    assert len(same) >= agreement * len(asked)
    assert furthest <= apart


async def test_what_holds_of_a_stream(data: Path) -> None:
    """Salts part the cache, an abort ends within a step, a kill in mid-stream is not noticed, seeds hold alone."""
    long = tuple(range(5, 405))
    async with engine(data, "1", "vllm") as client:
        alone = tokens_of(await answer(client, request_of("w", long, 40)))
        cached = [
            (await answer(client, replace(request_of(f"s{n}", long), cache_salt=salt)))[0].num_cached_tokens
            for n, salt in enumerate(("ann", "ann", "ben"))
        ]
        assert cached[0] == cached[2] == 0 and cached[1] > 0
        scored = await answer(client, request_of("p", long, 0, prompt_logprobs=0, prompt_logprobs_start=380))
        assert sum(len(each.prompt_logprobs) for each in scored) == 20 and tokens_of(scored) == []
        stop = alone[3]
        ended = await answer(client, request_of("e", long, 40, stop_token_ids=(stop,)))
        assert ended[-1].finish_reason is FinishReason.STOP and tokens_of(ended)[-1] == stop
        drawn = [await answer(client, request_of(f"d{n}", long, 20, temperature=1.0, seed=n // 2)) for n in range(4)]
        assert tokens_of(drawn[0]) == tokens_of(drawn[1]) and tokens_of(drawn[1]) != tokens_of(drawn[2])
        async with aclosing(client.generate(request_of("a", long, 400))) as stream:
            await anext(stream)
        before = client.stats.steps_total
        await asyncio.sleep(1)
        assert client.stats.steps_total <= before + 2 and client.stats.running == 0
        outputs = list[StepOutput]()
        async for output in client.generate(request_of("k", long, 40)):
            outputs.append(output)
            if output.token_ids and len(tokens_of(outputs)) == 5:
                assert client.pid is not None
                os.kill(client.pid, signal.SIGKILL)
        assert tokens_of(outputs) == alone and client.restarts == 1
        assert client.stats.cost
