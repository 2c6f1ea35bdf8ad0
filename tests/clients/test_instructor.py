"""instructor makes objects of answers, in each of its modes, unchanged."""

from __future__ import annotations

from tests.api.conftest import Serve
from tests.clients.running import found_by
from tests.clients.speaking import calling, says
from tests.fake_service import over_http

ORDER = {"menu": "불고기 도시락", "count": 2}
SPOKEN = '{"menu": "불고기 도시락", "count": 2}'
ANSWERS = {
    "두 개": (SPOKEN, calling("Order", **ORDER), calling("PartialOrder", **ORDER)),
    "열 개": calling("SmallOrder", menu="비빔밥", count=10),
    "세 개까지만": calling("SmallOrder", menu="비빔밥", count=3),
    "모두": calling("IterableOrder", tasks=[ORDER, {"menu": "비빔밥", "count": 1}]),
}


async def test_instructor(serve: Serve) -> None:
    async with serve(engine={"script": says(ANSWERS)}) as world, over_http(world) as url:
        found = await found_by("instructor", url)
        spent = [len(world.tokenizer.encode(each)) + 1 for each in (calling("Order", **ORDER), SPOKEN)]
    for mode, tokens in zip(("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON"), "00111", strict=True):
        assert found[mode] == [ORDER, spent[int(tokens)]], mode
    assert found["retried"] == {"menu": "비빔밥", "count": 3}, "asked again with the error of the first answer"
    assert found["parts"] == [True, ORDER]
    assert found["list"] == [ORDER, {"menu": "비빔밥", "count": 1}]
