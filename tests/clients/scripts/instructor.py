"""instructor: objects from answers in each of its modes, retried with the error, in parts, as lists, in Korean."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import instructor
from openai import OpenAI
from pydantic import AfterValidator, BaseModel

MODES = ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON")
CHAT: list[Any] = [{"role": "user", "content": "불고기 도시락 두 개 주세요"}]


class Order(BaseModel):
    menu: Literal["불고기 도시락", "비빔밥"]
    count: int


def at_most_three(count: int) -> int:
    if count > 3:
        raise ValueError("세 개까지만 됩니다")
    return count


class SmallOrder(BaseModel):
    menu: str
    count: Annotated[int, AfterValidator(at_most_three)]


def main(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for mode in MODES:
        client = instructor.from_openai(openai, mode=instructor.Mode[mode])
        order, answer = client.create_with_completion(model="demo", messages=CHAT, response_model=Order, max_retries=0)
        found[mode] = [order.model_dump(), answer.usage.completion_tokens]
    client = instructor.from_openai(openai)
    many: list[Any] = [{"role": "user", "content": "열 개 주세요"}]
    found["retried"] = client.create(model="demo", messages=many, response_model=SmallOrder, max_retries=2).model_dump()
    parts = list(client.create_partial(model="demo", messages=CHAT, response_model=Order))
    found["parts"] = [len(parts) > 2, parts[-1].model_dump()]
    listed: list[Any] = [{"role": "user", "content": "모두 주세요"}]
    found["list"] = [
        each.model_dump() for each in client.create_iterable(model="demo", messages=listed, response_model=Order)
    ]
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), ensure_ascii=False))
