"""Triton's own client over real HTTP where it is installed; everywhere the requests that it sends, as recorded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.api.conftest import Serve
from tests.fake_service import REPLY, World, over_http
from tests.triton_calls import MODEL, TEXT, calls
from tests.waiting import until

RECORDED = Path(__file__).parent / "tritonclient.json"
SHAPING = ("content-type", "content-encoding", "inference-header-content-length")
"""Headers that say how a body is to be read."""
THREE = "안녕하세요, "
"""The first three tokens of REPLY."""
Request = dict[str, Any]


class Recorder:
    """ASGI middleware that keeps every request, and hands it on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.requests: list[Request] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        while message.get("more_body"):
            more = await receive()
            message = {**more, "body": message["body"] + more["body"]}
        told = {name.decode(): value.decode() for name, value in scope["headers"]}
        headers = {name: told[name] for name in SHAPING if name in told}
        path, body = scope["raw_path"].decode(), message["body"].decode()
        self.requests.append({"method": scope["method"], "path": path, "headers": headers, "body": body})
        read = [message]

        async def again() -> Message:
            return read.pop() if read else await receive()

        await self._app(scope, again, send)


async def test_the_real_client(serve: Serve) -> None:
    http, numpy = pytest.importorskip("tritonclient.http"), pytest.importorskip("numpy")
    found: dict[str, Any] = {}
    async with serve() as world:
        recorder = Recorder(world.app)
        world.app = recorder  # type: ignore[assignment]
        async with over_http(world) as url:

            def call() -> None:
                with http.InferenceServerClient(url.removeprefix("http://")) as client:
                    found.update({name: each(client) for name, each in calls(http, numpy).items()})

            await asyncio.to_thread(call)
    assert [name for name, each in found.items() if each is False] == []
    assert found["metadata of a reference"]["versions"] == ["1"]
    assert found["index"] == [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}]
    assert found["infer"].as_numpy("text_output").tolist() == [REPLY.encode()]
    assert found["infer by tensors"].as_numpy("text_output").tolist() == [THREE.encode()]
    assert found["infer by tensors"].get_response()["id"] == "mine 1"
    assert found["infer by parameters"].as_numpy("text_output").tolist() == [[THREE]]
    sent = {"client": f"tritonclient {_version()}", "calls": dict(zip(found, recorder.requests, strict=True))}
    if not RECORDED.exists():
        RECORDED.write_text(json.dumps(sent, indent=1, ensure_ascii=False) + "\n")
    assert json.loads(RECORDED.read_text())["calls"] == sent["calls"]


def _version() -> str:
    from importlib.metadata import version

    return version("tritonclient")


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
