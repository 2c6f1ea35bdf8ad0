"""tritonclient works unchanged."""

from __future__ import annotations

from tests.api.conftest import Serve
from tests.clients.running import found_by
from tests.fake_service import REPLY, over_http

THREE = "안녕하세요, "
"""The first three tokens of REPLY."""


async def test_tritonclient(serve: Serve) -> None:
    async with serve() as world, over_http(world) as url:
        found = await found_by("tritonclient", url)
    status, sentence = found.pop("error")
    assert status == "404" and "nobody" in sentence
    assert [name for name, each in found.items() if each is False] == []
    assert found["metadata of a reference"]["versions"] == ["1"]
    assert found["index"] == [{"name": "demo", "version": "1", "state": "READY", "reason": ""}]
    assert found["infer"] == {"id": None, "shape": [1], "texts": [REPLY]}
    assert found["infer by tensors"] == {"id": "mine 1", "shape": [1], "texts": [THREE]}
    assert found["infer by parameters"] == {"id": None, "shape": [1, 1], "texts": [THREE]}
