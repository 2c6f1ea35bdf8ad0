"""litellm works unchanged, by each of its providers that speak a dialect of ours."""

from __future__ import annotations

import pytest

from tests.api.conftest import Serve
from tests.clients.running import found_by
from tests.clients.speaking import calling, failing_once, says
from tests.fake_service import over_http

HELLO = "안녕하세요! 무엇을 도와드릴까요?"
ANSWERS = {
    "안녕하세요": HELLO,
    "두 개": '{"menu": "불고기 도시락", "count": 2}',
    "얼마예요?": calling("price", menu="비빔밥"),
    "8,900원": "비빔밥은 8,900원이에요.",
}


@pytest.mark.nightly
async def test_litellm(serve: Serve) -> None:
    script = failing_once(says(ANSWERS), "다시")
    async with serve(engine={"script": script}) as world, over_http(world) as url:
        found = await found_by("litellm", url)
        spent = len(world.tokenizer.encode(HELLO)) + 1
    for model in ("openai/demo", "hosted_vllm/demo", "ollama_chat/demo", "ollama/demo"):
        assert (found[model], found[f"{model} stream"]) == ([HELLO, spent], [True, HELLO]), model
    assert found["triton/demo"][0] == found["text"] == found["retried"] == HELLO
    assert found["tools"] == [{"menu": "비빔밥"}, "비빔밥은 8,900원이에요."]
    assert found["structured"] == {"menu": "불고기 도시락", "count": 2}
    assert found["errors"] == ["ContextWindowExceededError", "NotFoundError", "BadRequestError"]
