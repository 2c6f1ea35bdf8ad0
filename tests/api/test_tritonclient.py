"""The requests that Triton's own client sends, as `tests/clients/test_tritonclient.py` has recorded them: delete the
file and run that test to record them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fake_service import REPLY, World
from tests.waiting import until

RECORDED = Path(__file__).parent / "tritonclient.json"
MODEL = "demo"
TEXT = "도시락 hello"
THREE = "안녕하세요, "
"""The first three tokens of REPLY."""
Request = dict[str, Any]


async def test_the_requests_of_the_real_client(world: World) -> None:
    sent: dict[str, Request] = json.loads(RECORDED.read_text())["calls"]
    answers = {}
    for name, each in sent.items():
        content = each["body"].encode()
        response = await world.client.request(each["method"], each["path"], headers=each["headers"], content=content)
        assert response.status_code == 200, f"{name}: {response.text}"
        answers[name] = response
    assert answers["server live"].json() == {"live": True}
    assert answers["server ready"].json() == {"ready": True}
    assert answers["model ready"].json() == answers["version ready"].json() == {"name": MODEL, "ready": True}
    assert answers["metadata of a reference"].json() == answers["model metadata"].json(), "there is one version"
    assert answers["index"].json() == [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}]
    assert answers["infer by parameters"].json()["outputs"][0]["data"] == [THREE]
    for name, text in (("infer", REPLY), ("infer by tensors", THREE)):
        length = int(answers[name].headers["inference-header-content-length"])
        [output] = json.loads(answers[name].content[:length])["outputs"]
        behind = answers[name].content[length:]
        assert behind == len(text.encode()).to_bytes(4, "little") + text.encode()
        assert output["parameters"] == {"binary_data_size": len(behind)}
        assert answers[name].headers["content-type"] == "application/octet-stream"
    greedy = world.engine.requests[-1]
    assert list(greedy.token_ids) == world.tokenizer.encode(TEXT)
    assert (greedy.params.max_tokens, greedy.params.temperature, greedy.params.stop_token_ids) == (3, 0.0, ())
    await until(lambda: not world.deployments.all())
