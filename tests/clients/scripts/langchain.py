"""langchain-openai: chats, streams, batches, tools in a loop, structured output, and errors as OpenAI's."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel


class Order(BaseModel):
    """An order."""

    menu: Literal["불고기 도시락", "비빔밥"]
    count: int


def price_of(menu: str) -> str:
    """The price of a menu."""
    return f"{menu}: 8,900원"


price = tool("price")(price_of)


def main(url: str, *, plain: bool = False) -> dict[str, Any]:
    """`plain`: without what needs a grammar, or a model that calls tools."""
    address: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "temperature": 0}
    chat = ChatOpenAI(model="demo", stream_usage=True, **address)
    asked = [SystemMessage("You sell lunch boxes."), HumanMessage("안녕하세요")]
    found: dict[str, Any] = {}
    answer = chat.invoke(asked)
    found["invoke"] = [answer.content, answer.usage_metadata["output_tokens"], answer.response_metadata["model_name"]]
    parts = list(chat.stream(asked))
    whole = sum(parts[1:], parts[0])
    found["stream"] = [len(parts) > 3, whole.content, whole.usage_metadata["output_tokens"]]
    found["batch"] = [each.content for each in chat.batch([asked, "불고기 도시락 두 개"])]
    found["completion"] = OpenAI(model="demo", max_tokens=200, **address).invoke("안녕하세요")
    found["retried"] = ChatOpenAI(model="demo", **{**address, "max_retries": 2}).invoke("다시 안녕하세요").content
    try:
        chat.invoke("a" * 9000)
    except openai.BadRequestError as error:
        found["too long"] = error.code
    return found if plain else found | with_tools(chat)


def with_tools(chat: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["structured"] = {
        method: chat.with_structured_output(Order, method=method).invoke("불고기 도시락 두 개").model_dump()
        for method in ("function_calling", "json_mode", "json_schema")
    }
    found["tools"] = tool_loop(chat)
    parts = list(chat.bind_tools([price]).stream("비빔밥 얼마예요?"))
    found["streamed call"] = [[each["name"], each["args"]] for each in sum(parts[1:], parts[0]).tool_calls]
    return found


def tool_loop(chat: Any) -> list[Any]:
    asking = chat.bind_tools([price])
    messages: list[Any] = [HumanMessage("비빔밥 얼마예요?")]
    call: AIMessage = asking.invoke(messages)
    messages.append(call)
    messages += [ToolMessage(price.invoke(each["args"]), tool_call_id=each["id"]) for each in call.tool_calls]
    forced = chat.bind_tools([price], tool_choice="price").invoke("비빔밥 얼마예요?").tool_calls
    return [call.tool_calls[0]["args"], asking.invoke(messages).content, forced[0]["args"]]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], plain="plain" in sys.argv), ensure_ascii=False))
