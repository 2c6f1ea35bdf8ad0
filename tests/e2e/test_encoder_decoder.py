"""Encoder-decoder versions over HTTP: imported by a job, served beside the demo model by the same routes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from tests.checkpoints import save_bart, save_t5
from tests.e2e.server import Server, free_port, python, running, stream
from tests.e2e.test_repository import MODELS, ended
from tests.published import with_demo

PROMPTS = ("안녕", "translate: the lunch box is full", "한 줄 요약: " + "김밥 두 줄과 물 한 병. " * 3, "x")
NEW_TOKENS = 12
SAVES = {"t5": save_t5, "bart": save_bart}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = with_demo(tmp_path_factory, "encoders")
    command = python("-m", "service.cli", "serve")
    with running(command, data, data.with_name("log"), free_port()) as served:
        yield served


Imported = Callable[[str], Path]


@pytest.fixture(scope="module")
def imported(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """Imports the model of that name once; returns the checkpoint that it was imported from."""

    @functools.cache
    def get(name: str) -> Path:
        source = SAVES[name](tmp_path_factory.mktemp(name) / "source")
        body = {"source": str(source), "precision": "fp32", "evaluate": "none"}
        with server.client() as client:
            job = ended(client, client.post(f"{MODELS}/{name}/versions", json=body).json()["id"])
        assert job["state"] == "succeeded", job
        return source

    return get


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "forced"), [pytest.param("t5", [], marks=pytest.mark.nightly), ("bart", [65])])
def test_imported_and_served(server: Server, imported: Imported, name: str, forced: list[int]) -> None:
    source = imported(name)
    with server.client() as client:
        parameters = {"max_new_tokens": NEW_TOKENS, "details": True, "repetition_penalty": 3.0}

        def ask(prompt: str) -> dict[str, object]:
            body = {"inputs": prompt, "model": name, "parameters": parameters}
            return client.post("/generate", json=body).raise_for_status().json()  # type: ignore[no-any-return]

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, 4 * PROMPTS))
        want = [_generate(source, prompt, forced) for prompt in PROMPTS]
        for number, answer in enumerate(answers):
            assert [token["id"] for token in answer["details"]["tokens"]] == want[number % len(PROMPTS)]  # type: ignore[index]
        again = client.post("/generate", json={"inputs": PROMPTS[2], "model": name, "parameters": parameters}).json()
        length = len(PROMPTS[2].encode())
        assert again["usage"]["prompt_tokens"] == again["usage"]["cached_tokens"] == length
        assert again["context"]["parts"]["current"] == length and again["context"]["reserved_output"] == 0
        streamed: dict[str, object] = {"inputs": PROMPTS[0], "model": name, "parameters": parameters}
        told = [event["token"]["id"] for event in stream(client, streamed) if "token" in event]  # type: ignore[index]
        assert told == want[0]


@pytest.mark.nightly
def test_what_an_encoder_cannot_do_is_refused_by_name(server: Server, imported: Imported) -> None:
    imported("bart")
    with server.client() as client:

        def refused(status: int, code: str, route: str = "/v1/completions", **body: object) -> str:
            response = client.post(route, json={"model": "bart", **body})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (status, code), response.text
            return str(error["message"])

        assert "encoder" in refused(400, "unsupported_field", prompt="x", max_tokens=1, echo=True, logprobs=1)
        assert "window has 128" in refused(400, "context_length_exceeded", prompt="x" * 129, max_tokens=1)
        assert "lower max_tokens by 1" in refused(400, "context_length_exceeded", prompt="x", max_tokens=127)
        chat = [{"role": "user", "content": "hi"}]
        assert "chat template" in refused(400, "invalid_request", "/v1/chat/completions", messages=chat)
        full = client.post("/v1/completions", json={"model": "bart", "prompt": "x" * 128, "max_tokens": 126})
        assert full.json()["usage"]["completion_tokens"] == 126


@pytest.mark.nightly
@pytest.mark.parametrize("name", SAVES)
def test_an_import_that_measures(server: Server, tmp_path: Path, name: str) -> None:
    with server.client() as client:
        body = {"source": str(SAVES[name](tmp_path / "source")), "precision": "fp32", "evaluate": "quick"}
        job = ended(client, client.post(f"{MODELS}/measured/versions", json=body).json()["id"])
        assert job["state"] == "succeeded" and "not_evaluated" not in job["result"], job  # type: ignore[operator]


def _generate(source: Path, prompt: str, forced: list[int]) -> list[int]:
    """The library's greedy tokens, behind those that the decoder is made to begin with."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(source, dtype=torch.float32, local_files_only=True)
    given = torch.tensor([Tokenizer.from_file(str(source / "tokenizer.json")).encode(prompt).ids])
    out = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=NEW_TOKENS + len(forced),
        do_sample=False,
        num_beams=1,
        repetition_penalty=3.0,
        eos_token_id=None,
    )
    tokens: list[int] = out[0, 1 + len(forced) :].tolist()
    return tokens
