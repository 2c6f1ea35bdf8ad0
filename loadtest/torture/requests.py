"""The requests of the load: what is asked in which dialect, each from a number alone.

>>> SHAPES["openai"].body("3")["messages"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from loadtest.torture.endings import Dialect

QUESTIONS: Final = tuple(map(str, range(8)))
"""Odd ones are sampled, with their number as the seed; even ones are greedy."""
TOKENS: Final = 64
LONG_TOKENS: Final = 384
"""Of streams that still run when a drain begins."""
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of request; of so many `weight` times as often as a kind of weight 1."""

    path: str
    dialect: Dialect
    body: Callable[[str], Body]
    weight: int = 1


def _text(question: str) -> str:
    return f"{question}번 도시락은 얼마예요? 그리고 무엇이 들어 있어요?"


def _chat(question: str) -> list[Body]:
    return [{"role": "user", "content": _text(question)}]


def _sampling(question: str) -> Body:
    return {"temperature": 0.8 * (int(question) % 2), "seed": int(question)}


def _native(question: str, tokens: int = TOKENS, **more: object) -> Body:
    parameters = {"max_new_tokens": tokens, "ignore_eos": True, **_sampling(question), **more}
    return {"messages": _chat(question), "parameters": parameters}


def _openai(question: str, tokens: int = TOKENS, **more: object) -> Body:
    limits = {"max_tokens": tokens, "ignore_eos": True}
    return {"messages": _chat(question), "stream": True, **limits, **_sampling(question), **more}


def _completions(question: str) -> Body:
    prompts = [_text(question), f"The lunch box {question}", "Kimchi"]
    return {"prompt": prompts, "max_tokens": 24, "ignore_eos": True, **_sampling(question)}


def _anthropic(question: str) -> Body:
    return {"model": "demo", "messages": _chat(question), "max_tokens": TOKENS, "stream": True, "temperature": 0}


def _ollama(question: str) -> Body:
    options = {"num_predict": TOKENS, **_sampling(question)}
    return {"model": "demo", "messages": _chat(question), "options": options}


def _embeddings(question: str) -> Body:
    return {"input": [_text(question), f"The lunch box {question}"]}


SHAPES: Final[Mapping[str, Shape]] = {
    "generate": Shape("/generate", "whole", _native, 2),
    "native": Shape("/generate_stream", "native", _native, 3),
    "long": Shape("/generate_stream", "native", lambda question: _native(question, LONG_TOKENS), 2),
    "openai": Shape("/v1/chat/completions", "openai", lambda question: _openai(question, logprobs=True), 3),
    "anthropic": Shape("/v1/messages", "anthropic", _anthropic),
    "ollama": Shape("/api/chat", "ollama", _ollama),
    "choices": Shape("/generate", "whole", lambda question: _native(question, n=3)),
    "completions": Shape("/v1/completions", "whole", _completions),
    "embeddings": Shape("/v1/embeddings", "whole", _embeddings),
}


def unread() -> Body:
    """Returns a request whose stream is larger than what the kernel keeps for a reader that reads nothing."""
    return _openai("1", 1200, n=4, logprobs=True, top_logprobs=20)
