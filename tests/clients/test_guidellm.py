"""guidellm works unchanged: its load on a real engine ends without an error, and its counts are those of the server."""

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
async def test_guidellm(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = [{"prompt": PROMPTS[place % 3], "output_tokens_count": TOKENS} for place in range(12)]
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    data = with_demo(tmp_path_factory, "guidellm")
    with running(python("-m", "service.cli", "serve"), data, tmp_path / "log", free_port()) as server:
        await run(
            "guidellm",
            "guidellm",
            *("run", "--disable-console-interactive"),
            *("--backend", f"kind=openai_http,target={server.url},model=demo"),
            *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=9"),
            *("--data", f"kind=json_file,path={tmp_path}/data.jsonl", "--tokenizer", f"kind=hf_auto,model={WEIGHTS}"),
            *("--output", f"kind=json,path={tmp_path}/out.json"),
        )
        async with httpx.AsyncClient(base_url=server.url) as client:
            asked = [{"messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]
            counted = [(await client.post("/tokenize", json=body)).json()["count"] for body in asked]
    [benchmark] = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    assert metrics["request_totals"] == {"successful": 9, "errored": 0, "incomplete": 0, "total": 9}
    assert metrics["output_token_count"]["successful"]["total_sum"] == 9 * TOKENS
    assert metrics["prompt_token_count"]["successful"]["total_sum"] == 3 * sum(counted)
    assert metrics["time_to_first_token_ms"]["successful"]["count"] == 9
