"""ollama's Python client works unchanged: every kind of call, streams, tools, structured output, errors."""

from __future__ import annotations

import ollama
import pytest

from service.errors import Unavailable
from tests.api.conftest import KEY, Serve
from tests.clients.calls import OLLAMA, OLLAMA_REFUSED, whole
from tests.fake_service import REPLY, over_http

CHAT = [{"role": "user", "content": "안녕하세요"}]


async def test_ollama(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        client = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"})
        for name, call in OLLAMA.items():
            if name in OLLAMA_REFUSED:
                with pytest.raises(ollama.ResponseError) as refused:
                    await whole(await call(client))
                assert refused.value.status_code == OLLAMA_REFUSED[name] and "{" not in refused.value.error
            else:
                assert await whole(await call(client)), name
        assert [each.model for each in (await client.list()).models] == ["demo:latest", "demo:1"]
        parts = await whole(await client.chat("demo", CHAT, stream=True, options={"temperature": 0}))
        assert "".join(part.message.content for part in parts) == REPLY
        assert parts[-1].done_reason == "stop" and parts[-1].eval_count == len(world.tokenizer.encode(REPLY)) + 1
        world.engine.failure, world.engine.fail_after = Unavailable("planted"), 2
        with pytest.raises(ollama.ResponseError, match="planted"):
            await whole(await client.generate("demo", "x", stream=True))
        with pytest.raises(ollama.ResponseError, match="key") as unknown:
            await ollama.AsyncClient(host=url).list()
        assert unknown.value.status_code == 401
