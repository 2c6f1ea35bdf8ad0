"""The real vLLM in its own interpreter, as the service starts it, for tests that take minutes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from models.imports.importing import import_source
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.quantize import quantize
from service.deployments.engine_config import engine_config, worker_of
from service.deployments.engine_options import EngineOptions
from service.engine.client.client import EngineClient
from service.engine.kinds.kinds import kind_of, require_vllm, vllm_python
from service.engine.protocol.messages import Request, SamplingParams, StepOutput
from service.errors import Conflict
from service.settings import Settings
from service.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "models" / "demo" / "weights"
HELD_OUT = ROOT / "recipe" / "held_out" / "en.jsonl"


def missing() -> str:
    """Returns why vLLM cannot run here; "" if it can."""
    try:
        require_vllm(vllm_python(Settings().vllm_python))
    except Conflict as error:
        return error.message
    return ""


NIGHTLY = [pytest.mark.nightly, pytest.mark.skipif(bool(missing()), reason=missing() or "vLLM is there")]


def repository_at(directory: Path) -> Path:
    """Puts the demo model there, `demo:1` in bf16 and `demo:2` in int8. Returns the directory."""
    repository = Repository(directory)
    quantize(repository, import_source(repository, str(DEMO), "demo"))
    return directory


def with_fp32(data: Path) -> Path:
    """Adds the demo model's weights in fp32, as the next version."""
    import_source(Repository(data), str(DEMO), "demo", precision="fp32")
    return data


@asynccontextmanager
async def engine(data: Path, version: str, name: str, **options: int | str) -> AsyncIterator[EngineClient]:
    settings, repository = Settings(data_dir=data, kv_cache_bytes=1 << 28), Repository(data)
    manifest: Manifest = repository.get("demo", version)
    kind = kind_of(name, options or None)
    config = engine_config(settings, repository, manifest, 0, EngineOptions(kind=kind))
    worker = worker_of(settings, kind, config.threads)
    client = EngineClient(config, module=worker.module, interpreter=worker.interpreter, env=worker.env)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def prompts(data: Path, count: int) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.load(Repository(data).path(Repository(data).get("demo", "1")))
    text = HELD_OUT.read_text(encoding="utf-8")
    return [tuple(tokenizer.encode(text[start : start + 160])) for start in range(0, 200 * count, 200)]


def request_of(id: str, prompt: tuple[int, ...], max_tokens: int = 1, **params: Any) -> Request:
    return Request(id, prompt, SamplingParams(max_tokens=max_tokens, **params))


async def answer(client: EngineClient, request: Request) -> list[StepOutput]:
    return [output async for output in client.generate(request)]
