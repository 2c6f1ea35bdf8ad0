"""langchain-openai works unchanged: chats, streams, tools in a loop, structured output, retries and errors."""

from __future__ import annotations

from tests.api.conftest import Serve
from tests.clients.running import found_by
from tests.clients.speaking import calling, failing_once, says
from tests.fake_service import over_http

HELLO = "안녕하세요! 무엇을 도와드릴까요?"
ORDER = {"menu": "불고기 도시락", "count": 2}
SPOKEN = '{"menu": "불고기 도시락", "count": 2}'
ANSWERS = {
    "안녕하세요": HELLO,
    "두 개": (SPOKEN, calling("Order", **ORDER)),
    "얼마예요?": calling("price", menu="비빔밥"),
    "8,900원": "비빔밥은 8,900원이에요.",
}


async def test_langchain(serve: Serve) -> None:
    script = failing_once(says(ANSWERS), "다시")
    async with serve(engine={"script": script}) as world, over_http(world) as url:
        found = await found_by("langchain", url)
        spent = len(world.tokenizer.encode(HELLO)) + 1
    assert found["invoke"] == [HELLO, spent, "demo:1"]
    assert found["stream"] == [True, HELLO, spent]
    assert found["batch"] == [HELLO, SPOKEN]
    assert found["structured"] == dict.fromkeys(("function_calling", "json_mode", "json_schema"), ORDER)
    assert found["tools"] == [{"menu": "비빔밥"}, "비빔밥은 8,900원이에요.", {"menu": "비빔밥"}]
    assert found["streamed call"] == [["price", {"menu": "비빔밥"}]]
    assert found["completion"] == found["retried"] == HELLO
    assert found["too long"] == "context_length_exceeded"
