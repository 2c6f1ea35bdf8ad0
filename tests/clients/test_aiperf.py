"""aiperf works unchanged: its load on a real engine ends without an error, and its counts are those of the server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from loadtest.bench.running import free_port
from models.imports.starter import WEIGHTS
from tests.clients.running import run
from tests.e2e.server import python, running
from tests.published import with_demo

PROMPTS = ["안녕하세요", "비빔밥 두 개 주세요", "What is in the box?"]
TOKENS = 8


@pytest.mark.nightly
async def test_aiperf(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"text": prompt}) for prompt in PROMPTS))
    data = with_demo(tmp_path_factory, "aiperf")
    with running(python("-m", "service.cli", "serve"), data, tmp_path / "log", free_port()) as server:
        await run(
            "aiperf",
            "aiperf",
            *("profile", "--ui", "none", "--url", server.url, "--model", "demo"),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(WEIGHTS), "--use-server-token-count"),
            *("--input-file", str(tmp_path / "prompts.jsonl"), "--custom-dataset-type", "single_turn"),
            *("--request-count", "9", "--concurrency", "2", "--random-seed", "1"),
            *("--extra-inputs", json.dumps({"max_tokens": TOKENS, "ignore_eos": True})),
            *("--artifact-dir", str(tmp_path / "found")),
            HF_HUB_OFFLINE="",  # else it looks for the tokenizer in its cache, and refuses a path
        )
        async with httpx.AsyncClient(base_url=server.url) as client:
            asked = [{"messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]
            counted = [(await client.post("/tokenize", json=body)).json()["count"] for body in asked]
    [path] = (tmp_path / "found").rglob("profile_export_aiperf.json")
    found = json.loads(path.read_text())
    assert found["request_count"]["avg"] == 9
    assert "error_request_count" not in found
    assert found["output_sequence_length"]["sum"] == 9 * TOKENS
    assert found["input_sequence_length"]["sum"] == 3 * sum(counted)
    assert found["time_to_first_token"]["count"] == 9
