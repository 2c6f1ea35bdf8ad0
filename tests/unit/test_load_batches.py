"""`loadtest.batches` fails for a client's answer that an error ends, also behind its first token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from loadtest.batches import Api, Work

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
STOPPED = b'data: {"error":{"message":"the engine was stopped","code":"unavailable"}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(("lines", "is_whole"), [((TOKEN, DONE), True), ((TOKEN, STOPPED), False), ((DONE,), False)])
async def test_an_answer_counts_where_it_is_whole(lines: tuple[bytes, ...], is_whole: bool) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"".join(lines), content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server, ClientSession() as client:
        service: Any = SimpleNamespace(url=str(server.make_url("")).rstrip("/"))
        api = Api(client, service, Work("demo"))
        if is_whole:
            assert await api.first_token(1) > 0
            return
        with pytest.raises(RuntimeError):
            await api.first_token(1)
