"""pydantic-ai works unchanged: agents with tools, each kind of structured output, streams, histories and errors."""

from __future__ import annotations

from tests.api.conftest import Serve
from tests.clients.running import found_by
from tests.clients.speaking import calling, says
from tests.fake_service import over_http

HELLO = "안녕하세요! 무엇을 도와드릴까요?"
ORDER = {"menu": "불고기 도시락", "count": 2}
ANSWERS = {
    "안녕하세요": HELLO,
    "두 개": ('{"menu": "불고기 도시락", "count": 2}', calling("final_result", **ORDER)),
    "열 개": calling("final_result", menu="비빔밥", count=10),
    "세 개까지만": calling("final_result", menu="비빔밥", count=3),
    "얼마예요?": calling("price", menu="비빔밥"),
    "8,900원": "비빔밥은 8,900원이에요.",
}


async def test_pydantic_ai(serve: Serve) -> None:
    async with serve(engine={"script": says(ANSWERS)}) as world, over_http(world) as url:
        found = await found_by("pydantic-ai", url)
        spent = len(world.tokenizer.encode(HELLO)) + 1
    assert found["plain"] == [HELLO, spent]
    assert found["history"] == [HELLO, 4]
    assert found["stream"] == [True, HELLO]
    assert [found[kind] for kind in ("ToolOutput", "NativeOutput", "PromptedOutput")] == [ORDER] * 3
    assert found["tools"] == ["비빔밥은 8,900원이에요."] * 2 + ["비빔밥"] * 2
    assert found["validated"] == 3
    assert found["too long"] == [400, "context_length_exceeded"]
