"""OpenAI's own client for responses, unchanged, over real HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from models.repository.repository import Repository
from service.engine.protocol.messages import Request
from service.errors import Unavailable
from service.text.tokenizer import Tokenizer
from tests.api.conftest import KEY, Serve
from tests.fake_service import REPLY, AfterHeaders, over_http, publish, serving
from tests.tools import WITH_TOOLS

openai = pytest.importorskip("openai")


class Lunch(BaseModel):
    name: str
    price: int


def says(text: str) -> Any:
    def script(request: Request, tokenizer: Tokenizer) -> list[int]:
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.stop_token_ids[0]]

    return script


async def test_create_and_stream(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        response = await client.responses.create(model="demo", input="hello", temperature=0)
        assert (response.output_text, response.status, response.usage.output_tokens_details.reasoning_tokens) == (
            REPLY,
            "completed",
            0,
        )
        again: Any = [{"role": "user", "content": "hello"}, *(item.model_dump() for item in response.output)]
        again.append({"role": "user", "content": "more"})
        async with client.responses.stream(model="demo", input=again, temperature=0) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == REPLY == next(e.text for e in events if e.type == "response.output_text.done")
        counted = await client.responses.input_tokens.count(model="demo", input=again)
        assert counted.input_tokens == final.usage.input_tokens
        with pytest.raises(openai.BadRequestError, match="built-in tools"):
            await client.responses.create(model="demo", input="x", tools=[{"type": "web_search"}])


async def test_a_failure_before_the_first_token_is_read(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's stream raises RuntimeError where no response was created before."""
    hold = AfterHeaders(monkeypatch)
    engine = {"fail_after": 0, "hold": hold, "failure": Unavailable("planted", retry_after=1)}
    async with serve(engine=engine) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        async with client.responses.stream(model="demo", input="hello") as stream:
            events = [event async for event in stream]
        assert [event.type for event in events] == ["response.created", "error", "response.failed"]
        failed = events[-1].response
        assert (failed.status, failed.error.message, failed.id) == ("failed", "planted", events[0].response.id)


async def test_parse(serve: Serve) -> None:
    async with serve(engine={"script": says('{"name": "비빔밥", "price": 8900}')}) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        parsed = await client.responses.parse(model="demo", input="hello", text_format=Lunch)
        assert parsed.output_parsed == Lunch(name="비빔밥", price=8900)
        async with client.responses.stream(model="demo", input="hello", text_format=Lunch) as stream:
            assert (await stream.get_final_response()).output_parsed == parsed.output_parsed


async def test_functions(tmp_path: Path) -> None:
    publish(Repository(tmp_path), chat_template=WITH_TOOLS)
    call = '<tool_call>\n{"name": "Lunch", "arguments": {"name": "김밥", "price": 1}}\n</tool_call>'
    async with serving(tmp_path, engine={"script": says(call)}) as world, over_http(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        tools = [openai.pydantic_function_tool(Lunch)["function"] | {"type": "function"}]
        async with client.responses.stream(model="demo", input="hello", tools=tools) as stream:
            [made] = (await stream.get_final_response()).output
        assert (made.type, made.name, made.parsed_arguments) == ("function_call", "Lunch", {"name": "김밥", "price": 1})
        items: Any = [{"role": "user", "content": "hello"}, made.model_dump(exclude={"parsed_arguments"})]
        items.append({"type": "function_call_output", "call_id": made.call_id, "output": "sold out"})
        world.engine.script = says("Sorry.")
        answer = await client.responses.create(model="demo", input=items, tools=tools)
        assert answer.output_text == "Sorry."
