"""litellm: one server by each of its providers that speak a dialect of it, and their errors as litellm's own."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import litellm
from pydantic import BaseModel

CHAT: list[Any] = [{"role": "user", "content": "안녕하세요"}]
PRICE: list[Any] = [{"role": "user", "content": "비빔밥 얼마예요?"}]
TOOL: dict[str, Any] = {
    "name": "price",
    "parameters": {"type": "object", "properties": {"menu": {"type": "string"}}, "required": ["menu"]},
}


class Order(BaseModel):
    menu: Literal["불고기 도시락", "비빔밥"]
    count: int


def main(url: str, *, plain: bool = False) -> dict[str, Any]:
    """`plain`: without what needs a grammar, or a model that calls tools."""
    found: dict[str, Any] = {}
    providers = {
        "openai/demo": f"{url}/v1",
        "hosted_vllm/demo": f"{url}/v1",
        "ollama_chat/demo": url,
        "ollama/demo": url,
        "triton/demo": f"{url}/generate",
    }
    for model, base in providers.items():
        asked: dict[str, Any] = {"model": model, "api_base": base, "api_key": "none", "messages": CHAT}
        if not model.startswith("triton"):  # which has no such parameter, and is greedy
            asked["temperature"] = 0
        answer = litellm.completion(**asked, max_tokens=200)
        found[model] = [answer.choices[0].message.content, answer.usage.completion_tokens]
        if not model.startswith("triton"):
            parts = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
            text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
            found[f"{model} stream"] = [len(parts) > 3, text]
    openai: dict[str, Any] = {"model": "openai/demo", "api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
    if not plain:
        found["tools"] = tool_loop(openai)
        order: list[Any] = [{"role": "user", "content": "불고기 도시락 두 개"}]
        structured = litellm.completion(**openai, messages=order, response_format=Order)
        found["structured"] = json.loads(structured.choices[0].message.content)
    again: list[Any] = [{"role": "user", "content": "다시 안녕하세요"}]
    found["retried"] = litellm.completion(**openai, messages=again, max_retries=2).choices[0].message.content
    found["errors"] = [
        refused(**openai, messages=[{"role": "user", "content": "a" * 9000}]),
        refused(**{**openai, "model": "openai/nope"}, messages=CHAT),
        refused(**{**openai, "temperature": 9}, messages=CHAT),
    ]
    text = litellm.text_completion(
        model="text-completion-openai/demo",
        api_base=f"{url}/v1",
        api_key="none",
        prompt="안녕하세요",
        max_tokens=200,
        temperature=0,
    )
    found["text"] = text.choices[0].text
    return found


def tool_loop(openai: dict[str, Any]) -> list[Any]:
    tools = [{"type": "function", "function": TOOL}]
    message = litellm.completion(**openai, messages=PRICE, tools=tools).choices[0].message
    call = message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "name": "price", "content": "8,900원"}
    answer = litellm.completion(**openai, messages=[*PRICE, message, result], tools=tools)
    return [json.loads(call.function.arguments), answer.choices[0].message.content]


def refused(**asked: Any) -> str:
    try:
        litellm.completion(**asked, max_retries=0)
    except Exception as error:
        return type(error).__name__
    return "answered"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], plain="plain" in sys.argv), ensure_ascii=False))
