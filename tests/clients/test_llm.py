"""llm, the command line, works unchanged with a server that `extra-openai-models.yaml` names."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.api.conftest import KEY, Serve
from tests.clients.running import run
from tests.clients.speaking import calling, says
from tests.fake_service import over_http

HELLO = "안녕하세요! 무엇을 도와드릴까요?"
ORDER = '{"menu": "비빔밥", "count": 2}'
ANSWERS = {
    "안녕하세요": HELLO,
    "두 개": ORDER,
    "얼마예요?": calling("price", menu="비빔밥"),
    "8,900원": "비빔밥은 8,900원이에요.",
}
PRICE = """
def price(menu: str) -> str:
    "The price of a menu."
    return "8,900원"
"""
KNOWN = """
- model_id: box
  model_name: demo
  api_base: {url}/v1
  api_key_name: dosirak
  supports_schema: true
  supports_tools: true
- model_id: box-text
  model_name: demo
  api_base: {url}/v1
  api_key_name: dosirak
  completion: true
"""


@pytest.mark.nightly
async def test_llm(serve: Serve, tmp_path: Path) -> None:
    async with serve(engine={"script": says(ANSWERS)}, admin_key=KEY) as world, over_http(world) as url:
        (tmp_path / "extra-openai-models.yaml").write_text(KNOWN.format(url=url))
        (tmp_path / "keys.json").write_text(json.dumps({"dosirak": KEY}))
        llm = partial(run, "llm", "llm", LLM_USER_PATH=str(tmp_path))
        assert await llm("-m", "box", "-s", "You sell lunch boxes.", "안녕하세요") == f"{HELLO}\n"
        assert await llm("-m", "box", "--no-stream", "안녕하세요") == f"{HELLO}\n"
        assert await llm("-c", "안녕하세요, 다시요") == f"{HELLO}\n"
        assert world.tokenizer.decode(list(world.engine.requests[-1].token_ids)).count(HELLO) == 1, "the chat so far"
        ordered = await llm("-m", "box", "--schema", "menu, count int", "비빔밥 두 개")
        assert json.loads(ordered) == json.loads(ORDER)
        assert await llm("-m", "box", "--functions", PRICE, "비빔밥 얼마예요?") == "비빔밥은 8,900원이에요.\n"
        assert await llm("-m", "box-text", "-o", "max_tokens", "200", "안녕하세요") == f"{HELLO}\n"
        logged = json.loads(await llm("logs", "-n", "1", "--json", "-m", "box"))
        assert logged[0]["output_tokens"] == len(world.tokenizer.encode("비빔밥은 8,900원이에요.")) + 1
        (tmp_path / "keys.json").write_text("{}")
        with pytest.raises(AssertionError, match="401"):
            await llm("-m", "box", "--key", "wrong", "안녕하세요")
