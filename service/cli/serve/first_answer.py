"""The first answer shows that the server works: one real request to the default model. It knows HTTP and a console;
which request the model answers well is the server's word."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
from rich.console import Console
from rich.text import Text

DEMO: Final = "demo:"
DEMO_CHAT: Final = (
    {"role": "user", "content": "제 이름은 김무슬이에요."},
    {"role": "assistant", "content": "네, 기억할게요."},
    {"role": "user", "content": "제 이름이 뭐예요?"},
)
SPEAKERS: Final = {"user": "you      ", "assistant": "dosirak  "}
TOKENS: Final = 64
SECONDS: Final = 300.0
"""The longest wait for a token, on a slow machine."""


def show_first_answer(client: httpx.Client, shown: Mapping[str, Any], console: Console, *, streams: bool) -> None:
    """Shows one answer of the model that `shown`, the answer of `GET /`, names: token by token where `streams`, else in
    whole lines when it is complete, so that another writer's lines stand around it. Raises httpx.HTTPError."""
    body = _body(shown)
    opening = _opening(body)
    if streams:
        console.print(opening, end="", soft_wrap=True)
    answer, last = "", dict[str, Any]()
    for last in _events(client, body):
        text = last.get("token", {}).get("text", "")
        answer += text
        if streams:
            console.out(text, end="", highlight=False)
    if streams:
        console.print()
    else:
        console.print(opening + answer, soft_wrap=True)
    console.print(f"[dim]{_measured(last)}[/]\n", highlight=False)


def _body(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request for `/generate_stream`: the demo's chat, else what the server shows as an example."""
    example = shown["example"]["body"]
    given = {"inputs": example["inputs"]} if "inputs" in example else {"messages": example["messages"]}
    if (shown["model"] or "").startswith(DEMO) and "messages" in given:
        given = {"messages": DEMO_CHAT}
    return {**given, "parameters": {"max_new_tokens": TOKENS}}


def _opening(body: Mapping[str, Any]) -> Text:
    """Returns what stands before the answer: the chat so far, or the text that the model continues."""
    if "inputs" in body:
        return Text.assemble("\n", body["inputs"])
    said = Text("\n")
    for message in body["messages"]:
        said.append(SPEAKERS[message["role"]], "bold").append(f"{message['content']}\n")
    return said.append(SPEAKERS["assistant"], "bold")


def _events(client: httpx.Client, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the stream's events; of a refusal, its body."""
    with client.stream("POST", "/generate_stream", json=body, timeout=SECONDS) as response:
        if response.is_error:
            yield json.loads(response.read())
            return
        for line in response.iter_lines():
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


def _measured(event: Mapping[str, Any]) -> str:
    timings, usage = event.get("timings"), event.get("usage")
    if timings is None or usage is None:
        return f"no answer: {event.get('error', 'the stream ended early')}"
    rate = timings["tokens_per_second"]
    speed = f" at {rate:.0f} a second" if rate is not None else ""
    return (
        f"{usage['prompt_tokens']} prompt tokens, first token after {timings['ttft_ms']:.0f} ms, "
        f"{usage['completion_tokens']} tokens{speed}"
    )
