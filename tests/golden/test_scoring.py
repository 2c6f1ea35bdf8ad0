"""Log-likelihoods of real models in fp32: through the whole API, in parts of few rows, alone and in a crowd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from httpx import ASGITransport, AsyncClient

from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.repository import Repository
from service.app import create_app
from service.deployments.deployments import Deployments
from service.deployments.engine_options import EngineOptions
from service.engine.protocol.messages import SamplingParams
from service.engine.runner import model_runner
from service.engine.runner.forwards.step import Step
from service.evaluation.jobs.jobs import Jobs
from service.observability.metrics import Metrics
from service.settings import Settings
from service.tasks import BackgroundTasks
from service.text.tokenizer import Tokenizer
from tests.checkpoints import save_llama
from tests.fake_service import URL
from tests.fakes import InProcessEngine
from tests.golden.conftest import Load
from tests.golden.tiny import Answer, Loaded, answer, request
from tests.waiting import until

TEXTS = ["a", "A lunch box, please.", "도시락 하나 주세요!", "x" * 90]


@dataclass
class Real:
    client: AsyncClient
    tokenizer: Tokenizer
    model: Any

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        response = await self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def logprobs(self, ids: Sequence[int], start: int) -> torch.Tensor:
        """Those of the tokens from `start` on, by one plain forward."""
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([ids])).logits[0].double()
        told = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        ends: torch.Tensor = told[start - 1 :]
        return ends


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Real]:
    settings = Settings(data_dir=directory / "data", default_model="demo", idle_reports=False)
    repository, metrics, tasks = Repository(settings.data_dir), Metrics(), BackgroundTasks()
    manifest = import_source(repository, str(save_llama(directory / "source", torch.float32)), "demo", precision="fp32")
    path = repository.path(manifest)

    def make(manifest: Manifest, promised_bytes: int, options: EngineOptions) -> InProcessEngine:
        return InProcessEngine(Loaded.of(path, "fp32", max_model_len=manifest.context_window).core(budget=40))

    deployments = Deployments(repository, make, default_model="demo", load_timeout=60, tasks=tasks)
    app = create_app(settings, deployments, Jobs(repository, tasks=tasks), metrics, tasks)
    async with AsyncClient(transport=ASGITransport(app), base_url=URL, timeout=60) as client:
        await deployments.start()
        await until(lambda: deployments.ready)
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        yield Real(client, Tokenizer.load(path), model)
        await deployments.stop()
        await tasks.stop()


async def crowd(real: Real) -> list[asyncio.Task[httpx.Response]]:
    given = {"parameters": {"max_new_tokens": 20}}
    tasks = [
        asyncio.create_task(real.client.post("/generate", json={"inputs": f"crowd {n} " * 3, **given}))
        for n in range(6)
    ]
    await asyncio.sleep(0.02)
    return tasks


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Real]:
    async with serving(tmp_path) as made:
        yield made


async def test_embeddings(real: Real) -> None:
    alone = {
        kind: await real.post("/v1/embeddings", input=TEXTS, pooling=kind, normalize=False)
        for kind in ("mean", "last", "cls")
    }
    others = await crowd(real)
    for kind, told in alone.items():
        again = await real.post("/v1/embeddings", input=TEXTS, pooling=kind, normalize=False)
        assert again["data"] == told["data"]
        for text, found in zip(TEXTS, told["data"], strict=True):
            ids = torch.tensor([real.tokenizer.encode(text)])
            with torch.inference_mode():
                states = real.model.base_model(input_ids=ids).last_hidden_state[0]
            wanted = {"mean": states.mean(0), "last": states[-1], "cls": states[0]}[kind]
            torch.testing.assert_close(torch.tensor(found["embedding"]), wanted, atol=1e-3, rtol=0)
    await asyncio.gather(*others)


async def test_choices(real: Real) -> None:
    body: dict[str, Any] = {
        "inputs": "Is there gimbap on the menu of the lunch box shop? Answer: ",
        "choices": [" yes", " no", "아마도"],
    }
    alone = await real.post("/generate", **body)
    others = await crowd(real)
    assert (await real.post("/generate", **body))["choices"] == alone["choices"]
    await asyncio.gather(*others)
    prompt = real.tokenizer.encode(body["inputs"])
    sums = []
    for choice, found in zip(body["choices"], alone["choices"], strict=True):
        ids = [*prompt, *real.tokenizer.encode(choice, add_special_tokens=False)]
        told = real.logprobs(ids, len(prompt))
        torch.testing.assert_close(
            torch.tensor([t["logprob"] for t in found["tokens"]]).double(), told, atol=1e-3, rtol=0
        )
        sums.append(told.sum())
    probabilities = torch.stack(sums).softmax(0)
    found = torch.tensor([each["probability"] for each in alone["choices"]]).double()
    torch.testing.assert_close(found, probabilities, atol=1e-3, rtol=0)
    assert alone["choice"] == body["choices"][int(probabilities.argmax())]


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_lm_eval_log_likelihoods(real: Real, max_tokens: int) -> None:
    """As lm-eval's `local-completions` asks: token ids of context and continuation, echo, one logprob, greedy."""
    prompts = [real.tokenizer.encode(text) for text in TEXTS[1:]]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0, "seed": 1}
    alone = await real.post("/v1/completions", **body)
    others = await crowd(real)
    again = await real.post("/v1/completions", **body)
    assert [each["logprobs"] for each in again["choices"]] == [each["logprobs"] for each in alone["choices"]]
    await asyncio.gather(*others)
    for ids, choice in zip(prompts, alone["choices"], strict=True):
        told, top = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
        assert (told[0], len(told), len(top)) == (None, len(ids) + max_tokens, len(ids) + max_tokens)
        found = torch.tensor(told[1 : len(ids)]).double()
        torch.testing.assert_close(found, real.logprobs(ids, 1), atol=1e-3, rtol=0)
        greedy = [max(each.values()) for each in top[1 : len(ids)]]
        assert all(best >= own - 1e-6 for best, own in zip(greedy, told[1:], strict=False))


PARAMS = SamplingParams(max_tokens=3, prompt_logprobs=2, logprobs=0)
LENGTHS = (61, 5, 300, 40)


def answers(loaded: Loaded) -> dict[str, Answer]:
    requests = [request(str(length), [(7 * i + length) % 199 for i in range(length)], PARAMS) for length in LENGTHS]
    return answer(loaded.core(budget=1000), {0: requests})


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_parts_tell_the_same_with_few_rows_of_logits(load: Load, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(name, "fp32")
    whole = answers(loaded)
    forward, rows = loaded.runner.forward, list[int]()

    def noting(step: Step) -> torch.Tensor:
        logits = forward(step)
        rows.append(len(logits))
        return logits

    monkeypatch.setattr(model_runner, "PART_ROWS", 32)
    monkeypatch.setattr(loaded.runner, "forward", noting)
    assert answers(loaded) == whole
    assert max(rows) <= 32 + max(16, loaded.runner._rules.linear), "a part, the rows that sample, and padding"
    assert [len(whole[str(length)].prompt_logprobs) for length in LENGTHS] == [length - 1 for length in LENGTHS]


@pytest.mark.parametrize(("name", "precision"), [("llama", "fp32"), ("llama", "int8"), ("gpt2", "fp32")])
def test_the_end_of_a_prompt_is_told_behind_a_cached_prefix(load: Load, name: str, precision: str) -> None:
    """As choices need it: the same bits as those of the whole prompt, and no decode step."""
    loaded, prompt = load(name, precision), [(7 * i) % 199 for i in range(61)]
    told = SamplingParams(max_tokens=0, prompt_logprobs=1)
    whole = answer(loaded.core(), {0: [request("a", prompt, told)]})["a"].prompt_logprobs
    ends = replace(told, prompt_logprobs_start=50)
    crowd = [request(str(i), [i, *prompt[:20]], SamplingParams(max_tokens=9)) for i in range(3)]
    found = answer(loaded.core(33), {0: [*crowd, request("first", prompt, ends)], 9: [request("again", prompt, ends)]})
    assert found["first"].prompt_logprobs == found["again"].prompt_logprobs == whole[49:]
    assert found["again"].num_cached_tokens == 48, "whole blocks before the row that predicts token 50"
    assert found["again"].token_ids == ()
