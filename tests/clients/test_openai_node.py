"""openai-node works unchanged: chats, streams, tools in a loop, structured output, cancellation, retries and errors."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.api.conftest import Serve
from tests.clients import environments
from tests.clients.running import called
from tests.clients.speaking import calling, failing_once, says
from tests.fake_service import over_http
from tests.waiting import until

HELLO = "안녕하세요! 무엇을 도와드릴까요?"
ANSWERS = {
    "안녕하세요": HELLO,
    "두 개": '{"menu": "불고기 도시락", "count": 2}',
    "얼마예요?": calling("price", menu="비빔밥"),
    "8,900원": "비빔밥은 8,900원이에요.",
    "길게": "네, " * 1000,
}
SCRIPT = Path(__file__).parent / "node" / "ask.mjs"


async def test_openai_node(serve: Serve) -> None:
    try:
        await asyncio.to_thread(environments.build, environments.NODE)
    except environments.NotBuilt as error:
        pytest.skip(str(error))
    script = shutil.copy(SCRIPT, environments.BUILT / environments.NODE)
    engine = {"script": failing_once(says(ANSWERS), "다시"), "step_seconds": 0.001}
    async with serve(engine=engine) as world, over_http(world) as url:
        output = await called("node", str(script), url, PATH=os.environ["PATH"])
        found = json.loads(output)
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
