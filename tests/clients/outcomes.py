"""This module gives what every client finds at a running server, call by call, as data: the same of any engine.

Calls are greedy, so that the answers of two engines can be compared. A call that is refused has its refusal as its
outcome. The server's version must have a template that places tools, and the name `demo`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import anthropic
import httpx
import ollama
import openai
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError
from pydantic import ValidationError

from tests.clients.calls import ANTHROPIC, OLLAMA
from tests.clients.running import found_by, run
from tests.clients.test_openai_node import found_by_node

Outcome = Any
Outcomes = dict[str, Outcome]
CHAT: Final[list[Any]] = [{"role": "user", "content": "비빔밥 두 개 주세요. 얼마예요?"}]
PRICE: Final = {"type": "object", "properties": {"menu": {"type": "string"}}, "required": ["menu"]}
TOOLS: Final[list[Any]] = [{"type": "function", "function": {"name": "price", "description": "", "parameters": PRICE}}]
FORMAT: Final[Any] = {"type": "json_schema", "json_schema": {"name": "price", "schema": PRICE, "strict": True}}
OPTIONS: Final = {"temperature": 0, "num_predict": 40}
GRAMMAR: Final[Any] = {"type": "json", "value": PRICE}
VARYING: Final = frozenset(
    {"id", "created", "created_at", "request_id", "timings", "system_fingerprint", "request", "context"}
    | {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "expires_at", "modified_at"}
    | {
        "cached_tokens",
        "completed_at",
        "seed",
        "logprob",
        "bytes",
        "top_logprobs",
        "logprobs",
        "prefill",
        "size",
        "size_vram",
    }
    | {
        "prompt_tokens_details",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "input_tokens",
        "input_tokens_details",
    }
)
"""Fields that two answers to one request differ in, and those that tell what was found cached."""
UNLOADS: Final = "ollama: generate unload"
GRAMMARS: Final = frozenset(
    {"openai: format", "openai: forced tool", "huggingface: grammar", "huggingface: forced tool"}
    | {"ollama: chat format", "ollama: generate json", "anthropic: forced", "anthropic: named", "anthropic: parse"}
)
"""Calls that need a grammar."""
STATES: Final = frozenset({"openai: embeddings"})
"""Calls that need the states of a prompt."""
SCRIPTS: Final = ("langchain", "litellm", "pydantic-ai", "tritonclient")


async def of_openai(url: str) -> Outcomes:
    client: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    chat, greedy = client.chat.completions, {"model": "demo", "temperature": 0}
    many = {**greedy, "temperature": 0.8, "n": 2, "seed": 3}
    long: list[Any] = [{"role": "user", "content": "a" * 9000}]
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "models": lambda: _listed(client.models.list()),
        "chat": lambda: chat.create(**greedy, messages=CHAT, max_tokens=40, logprobs=True),
        "chat stream": lambda: _streamed(
            chat.create(**greedy, messages=CHAT, max_tokens=40, stream=True, stream_options={"include_usage": True})
        ),
        "stop": lambda: chat.create(**greedy, messages=CHAT, max_tokens=40, stop=["요", "."]),
        "texts": lambda: client.completions.create(**greedy, prompt=["비빔밥은", "The lunch"], max_tokens=9, echo=True),
        "scores": lambda: client.completions.create(**greedy, prompt="비빔밥은", max_tokens=0, echo=True, logprobs=1),
        "many": lambda: _counted(chat.create(**many, messages=CHAT, max_tokens=9)),
        "penalty": lambda: chat.create(**greedy, messages=CHAT, max_tokens=20, frequency_penalty=1, presence_penalty=1),
        "bias": lambda: chat.create(**greedy, messages=CHAT, max_tokens=9, logit_bias={"300": 100}),
        "response": lambda: client.responses.create(**greedy, input="안녕하세요", max_output_tokens=30, store=False),
        "tools": lambda: chat.create(**greedy, messages=CHAT, tools=TOOLS, max_tokens=30),
        "format": lambda: chat.create(**greedy, messages=CHAT, response_format=FORMAT, max_tokens=40),
        "forced tool": lambda: chat.create(**greedy, messages=CHAT, tools=TOOLS, tool_choice="required", max_tokens=40),
        "embeddings": lambda: _counted_vectors(client.embeddings.create(model="demo", input=["도시락"])),
        "too long": lambda: chat.create(**greedy, messages=long),
        "no such model": lambda: chat.create(**{**greedy, "model": "gpt-4o"}, messages=CHAT),
        "bad value": lambda: chat.create(**{**greedy, "temperature": 9}, messages=CHAT),
    }
    return {f"openai: {name}": await _outcome(call) for name, call in calls.items()}


async def of_huggingface(url: str) -> Outcomes:
    client: Any = AsyncInferenceClient(base_url=url)
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "text": lambda: client.text_generation("비빔밥은", max_new_tokens=12, details=True, decoder_input_details=True),
        "stream": lambda: _texts(client.text_generation("비빔밥은", max_new_tokens=12, stream=True)),
        "stop": lambda: client.text_generation("비빔밥은", max_new_tokens=12, stop=["요"], return_full_text=True),
        "chat": lambda: client.chat_completion(CHAT, max_tokens=20, temperature=0),
        "chat stream": lambda: _streamed(client.chat_completion(CHAT, max_tokens=20, temperature=0, stream=True)),
        "tools": lambda: client.chat_completion(CHAT, tools=TOOLS, tool_choice="auto", max_tokens=20, temperature=0),
        "grammar": lambda: client.text_generation("x", grammar=GRAMMAR, max_new_tokens=40),
        "forced tool": lambda: client.chat_completion(
            CHAT, tools=TOOLS, tool_choice="required", temperature=0, max_tokens=40
        ),
        "bad value": lambda: client.text_generation("x", top_p=3.0),
    }
    return {f"huggingface: {name}": await _outcome(call) for name, call in calls.items()}


async def of_ollama(url: str) -> Outcomes:
    """Every call of `calls`, but for the one that unloads."""
    client: Any = ollama.AsyncClient(host=url, transport=_Greedy())
    outcomes = Outcomes()
    for name, call in OLLAMA.items():
        if (name := f"ollama: {name}") != UNLOADS:
            outcomes[name] = await _outcome(lambda call=call: _joined(call(client)))  # type: ignore[misc]
    return outcomes


async def of_anthropic(url: str) -> Outcomes:
    """Every call of `calls`."""
    client = _GreedyAnthropic(base_url=url, api_key="x", max_retries=0)
    outcomes = Outcomes()
    for name, call in ANTHROPIC.items():
        outcomes[f"anthropic: {name}"] = await _outcome(lambda call=call: _joined(call(client)))  # type: ignore[misc]
    return outcomes


async def of_script(name: str, url: str) -> Outcomes:
    """What a script finds in its own environment, without grammars and calls. Skips where it cannot be had."""
    found = await found_by(name, url, "plain")
    return {f"{name}: {part}": _essence(each) for part, each in found.items()}


async def of_node(url: str) -> Outcomes:
    found = await found_by_node("ask.mjs", url, "plain")
    return {f"openai (Node): {part}": each for part, each in found.items()}


async def of_llm(url: str) -> Outcomes:
    with tempfile.TemporaryDirectory() as folder:
        known = [{"model_id": "box", "model_name": "demo", "api_base": f"{url}/v1"}]
        await asyncio.to_thread(Path(folder, "extra-openai-models.yaml").write_text, json.dumps(known))

        async def llm(*words: str) -> str:
            return await run("llm", "llm", *words, LLM_USER_PATH=folder)

        greedy = ("-m", "box", "--key", "x", "-o", "temperature", "0", "-o", "max_tokens", "40")
        return {
            "llm: stream": await llm(*greedy, "-s", "You sell lunch boxes.", "안녕하세요"),
            "llm: whole": await llm(*greedy, "--no-stream", "안녕하세요"),
            "llm: chat": await llm("-c", "--key", "x", "-o", "temperature", "0", "-o", "max_tokens", "40", "더 주세요"),
        }


class _Greedy(httpx.AsyncHTTPTransport):
    """Adds options to the bodies of Ollama's client that ask for an answer and leave them unset."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        body = json.loads(content) if content else {}
        if "messages" in body or "prompt" in body:
            body["options"] = {**OPTIONS, **(body.get("options") or {})}
            headers = {name: each for name, each in request.headers.items() if name != "content-length"}
            request = httpx.Request(
                request.method, request.url, headers=headers, json=body, extensions=request.extensions
            )
        return await super().handle_async_request(request)


class _GreedyAnthropic(anthropic.AsyncAnthropic):
    """The client has no parameter for the temperature any more."""

    async def _prepare_options(self, options: Any) -> Any:
        if options.url == "/v1/messages" and isinstance(options.json_data, dict):
            options.json_data = {**options.json_data, "temperature": 0}
        return await super()._prepare_options(options)


async def _outcome(call: Callable[[], Awaitable[Any]]) -> Outcome:
    try:
        return _essence(await call())
    except openai.APIStatusError as error:
        return ["refused", error.status_code, str(error.message)]
    except anthropic.APIStatusError as error:
        body: Any = error.body
        return ["refused", error.status_code, body["error"]["message"]]
    except ollama.ResponseError as error:
        return ["refused", error.status_code, error.error]
    except HfHubHTTPError as error:
        return ["refused", error.response.status_code, str(error.server_message)]
    except TextGenerationError as error:
        return ["refused", type(error).__name__, str(error)]
    except ValidationError as error:  # of an answer that ended before its grammar did
        return ["answered, and cut", type(error).__name__]


def is_refused(outcome: Outcome) -> bool:
    """Whether a call was refused: then its outcome is the word, the status and the sentence."""
    return isinstance(outcome, list) and outcome[:1] == ["refused"]


def _essence(found: Any) -> Any:
    """Returns a client's object as data, without what varies."""
    if hasattr(found, "model_dump"):
        found = found.model_dump()
    if isinstance(found, Mapping):
        return {str(name): _essence(each) for name, each in found.items() if name not in VARYING}
    if isinstance(found, (list, tuple)):
        return [_essence(each) for each in found]
    return found if isinstance(found, (str, int, float, bool, type(None))) else str(found)


async def _listed(models: Any) -> list[str]:
    return [model.id async for model in models]


async def _counted(answer: Awaitable[Any]) -> list[bool]:
    return [bool(choice.message.content) for choice in (await answer).choices]


async def _counted_vectors(answer: Awaitable[Any]) -> int:
    return len((await answer).data[0].embedding)


async def _streamed(answer: Awaitable[Any]) -> list[Any]:
    """The text of a stream of chat completions, its finish reasons, and what it says of its usage."""
    chunks = [chunk async for chunk in await answer]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    usage = getattr(chunks[-1], "usage", None)
    text = "".join(choice.delta.content or "" for choice in choices)
    return [text, [each.finish_reason for each in choices if each.finish_reason], _essence(usage)]


async def _texts(answer: Awaitable[Any]) -> str:
    return "".join([text async for text in await answer])


async def _joined(answer: Awaitable[Any]) -> Any:
    """An answer, or of a stream all its texts and its last part with a finish reason."""
    told = await answer
    if not isinstance(told, AsyncIterator) and not hasattr(told, "__aiter__"):
        return told
    parts = [_essence(each) async for each in told]
    return [
        "".join(filter(None, map(_text, parts))),
        parts[-1],
        [_text(each) is not None for each in parts].count(True),
    ]


def _text(part: Mapping[str, Any]) -> str | None:
    """The text of a part of Ollama's or of Anthropic's streams."""
    for name in ("message", "delta"):
        if isinstance(inner := part.get(name), Mapping):
            return inner.get("content") or inner.get("text") or inner.get("partial_json")
    return part.get("response")


CLIENTS: Final[dict[str, Callable[[str], Awaitable[Outcomes]]]] = {
    "openai": of_openai,
    "huggingface_hub": of_huggingface,
    "ollama": of_ollama,
    "anthropic": of_anthropic,
    "openai (Node)": of_node,
    "llm": of_llm,
    **{name: (lambda url, name=name: of_script(name, url)) for name in SCRIPTS},  # type: ignore[misc]
}
