"""tritonclient works unchanged. The requests that it sends are those that `tests/api/test_tritonclient.py`
replays where the client cannot be had."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.api.conftest import Serve
from tests.api.test_tritonclient import RECORDED
from tests.clients import environments
from tests.clients.running import found_by
from tests.fake_service import REPLY, over_http

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


async def test_tritonclient(serve: Serve) -> None:
    async with serve() as world:
        recorder = Recorder(world.app)
        world.app = recorder  # type: ignore[assignment]
        async with over_http(world) as url:
            found = await found_by("tritonclient", url)
    status, sentence = found.pop("error")
    assert status == "404" and "nobody" in sentence
    assert [name for name, each in found.items() if each is False] == []
    assert found["metadata of a reference"]["versions"] == ["1"]
    assert found["index"] == [{"name": "demo", "version": "1", "state": "READY", "reason": ""}]
    assert found["infer"] == {"id": None, "shape": [1], "texts": [REPLY]}
    assert found["infer by tensors"] == {"id": "mine 1", "shape": [1], "texts": [THREE]}
    assert found["infer by parameters"] == {"id": None, "shape": [1, 1], "texts": [THREE]}
    calls = dict(zip(found, recorder.requests, strict=False))
    sent = {"client": f"tritonclient {environments.version('tritonclient')}", "calls": calls}
    assert recorded(sent) == sent


def recorded(sent: dict[str, Any]) -> Any:
    """What was sent when the file was made, which is now if it is not there."""
    if not RECORDED.exists():
        RECORDED.write_text(json.dumps(sent, indent=1, ensure_ascii=False) + "\n")
    return json.loads(RECORDED.read_text())
