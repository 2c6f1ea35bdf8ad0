"""pydantic-ai: agents with tools, each kind of structured output, streams, histories and errors."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, ModelRetry, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Order(BaseModel):
    menu: Literal["불고기 도시락", "비빔밥"]
    count: int


async def main(url: str, *, plain: bool = False) -> dict[str, Any]:
    """`plain`: without what needs a grammar, or a model that calls tools."""
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    model = OpenAIChatModel("demo", provider=provider, settings={"temperature": 0, "max_tokens": 200})
    found: dict[str, Any] = {}
    agent = Agent(model, system_prompt="You sell lunch boxes.", instructions="Be brief.")
    first = await agent.run("안녕하세요")
    found["plain"] = [first.output, first.usage.output_tokens]
    again = await agent.run("안녕하세요, 다시요", message_history=first.all_messages())
    found["history"] = [again.output, len(again.all_messages())]
    async with agent.run_stream("안녕하세요") as stream:
        parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
    found["stream"] = [len(parts) > 3, "".join(parts)]
    try:
        await agent.run("a" * 9000)
    except ModelHTTPError as error:
        found["too long"] = [error.status_code, error.body["code"]]
    return found if plain else found | await structured(model)


async def structured(model: OpenAIChatModel) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in (ToolOutput, NativeOutput, PromptedOutput):
        agent = Agent(model, output_type=kind(Order))
        found[kind.__name__] = (await agent.run("불고기 도시락 두 개")).output.model_dump()
    found["tools"] = await with_tools(model)
    found["validated"] = await validated(model)
    return found


async def with_tools(model: OpenAIChatModel) -> list[str]:
    agent = Agent(model)
    asked: list[str] = []

    def price(menu: str) -> str:
        """The price of a menu."""
        asked.append(menu)
        return "8,900원"

    agent.tool_plain(price)
    whole = (await agent.run("비빔밥 얼마예요?")).output
    async with agent.run_stream("비빔밥 얼마예요?") as stream:
        return [whole, await stream.get_output(), *asked]


async def validated(model: OpenAIChatModel) -> int:
    agent = Agent(model, output_type=Order, retries=2)

    def few(order: Order) -> Order:
        if order.count > 3:
            raise ModelRetry("세 개까지만 됩니다")
        return order

    agent.output_validator(few)
    return int((await agent.run("열 개 주세요")).output.count)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], plain="plain" in sys.argv)), ensure_ascii=False))
