"""openai-node works unchanged: chats, streams, tools in a loop, structured output, cancellation, retries and errors;
responses, embeddings, files and batches."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from models.repository.repository import Repository
from service.tasks import BackgroundTasks
from tests.api.conftest import Serve
from tests.clients import environments
from tests.clients.running import called
from tests.clients.speaking import calling, failing_once, says
from tests.fake_service import over_http, publish, serving
from tests.tools import WITH_TOOLS
from tests.waiting import until

HELLO = "안녕하세요! 무엇을 도와드릴까요?"
ANSWERS = {
    "안녕하세요": HELLO,
    "두 개": '{"menu": "불고기 도시락", "count": 2}',
    "얼마예요?": calling("price", menu="비빔밥"),
    "두 번째": "두 번째 답이에요.",
    "8,900원": "비빔밥은 8,900원이에요.",
    "길게": "네, " * 1000,
}
SCRIPTS = Path(__file__).parent / "node"
EVENTS = ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"]
EVENTS += ["output_text.done", "content_part.done", "output_item.done", "completed"]


async def found_by_node(name: str, url: str, *more: str) -> dict[str, Any]:
    try:
        await asyncio.to_thread(environments.build, environments.NODE)
    except environments.NotBuilt as error:
        pytest.skip(str(error))
    script = shutil.copy(SCRIPTS / name, environments.BUILT / environments.NODE)
    found: dict[str, Any] = json.loads(await called("node", str(script), url, *more, PATH=os.environ["PATH"]))
    return found


async def test_chat(serve: Serve) -> None:
    engine = {"script": failing_once(says(ANSWERS), "다시"), "step_seconds": 0.001}
    async with serve(engine=engine) as world, over_http(world) as url:
        found = await found_by_node("ask.mjs", url)
        spent = len(world.tokenizer.encode(HELLO)) + 1
        await until(lambda: len(world.engine.aborted) == 2)  # the one that failed, and the one whose reader went away
    assert found["models"] == ["demo", "demo:1"]
    assert found["chat"] == found["stream"] == [HELLO, spent]
    assert found["helper"] == found["retried"] == HELLO
    assert found["structured"] == {"menu": "불고기 도시락", "count": 2}
    assert found["tools"] == ["비빔밥은 8,900원이에요.", "비빔밥"]
    assert found["errors"] == [
        ["BadRequestError", "context_length_exceeded"],
        ["NotFoundError", "not_found"],
        ["BadRequestError", "invalid_request"],
    ]


async def test_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.generation.batches.worker.IDLE_SECONDS", 0.05)
    publish(Repository(tmp_path), window=8192, chat_template=WITH_TOOLS)
    embedded = {"lunch box": "", "도시락": ""}
    tasks = BackgroundTasks(first_delay=0.005)
    async with serving(tmp_path, engine={"script": says(embedded | ANSWERS)}) as world, over_http(world) as url:
        world.app.state.service.batch_worker.start(tasks)
        found = await found_by_node("resources.mjs", url)
        await tasks.stop()
        second = world.tokenizer.decode(list(world.engine.requests[1].token_ids))
        spent = len(world.tokenizer.encode(HELLO)) + 1
    assert found["response"] == [HELLO, "completed", spent]
    assert found["followed"] == [ANSWERS["두 번째"], True, ["두 번째"]]
    assert HELLO in second, "what was said before"
    assert found["kept"] == found["streamed"] == HELLO
    assert found["events"] == [f"response.{event}" for event in EVENTS]
    assert found["structured"] == {"menu": "불고기 도시락", "count": 2}
    assert found["tools"] == ["price", {"menu": "비빔밥"}, "비빔밥은 8,900원이에요."]
    assert found["gone"] == "NotFoundError"
    assert found["embeddings"] == [True, True] and found["dimensions"] == [3, 3]
    counts = {"total": 2, "completed": 1, "failed": 1}
    assert found["batch"] == ["completed", {"shop": "lunch"}, counts]
    assert found["output"] == ["첫째", HELLO]
    assert found["error"] == ["둘째", "context_length_exceeded"]
    assert (found["files"], found["filename"], found["deleted"]) == (3, "두.jsonl", True)
    assert found["batches"] == [True] and found["late"] == "ConflictError"
