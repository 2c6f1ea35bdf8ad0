"""A token with its logprob, as OpenAI's and Ollama's dialects show it."""

from __future__ import annotations

from typing import Any

from service.generation.token_delta import Token
from service.text.tokenizer import Tokenizer


def with_alternatives(tokenizer: Tokenizer, token: Token) -> dict[str, Any]:
    """Returns a sampled token and the likeliest ones at its position."""
    alternatives = [_shown(tokenizer, *top) for top in token.top]
    return {**_shown(tokenizer, token.id, token.logprob), "top_logprobs": alternatives}


def _shown(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, Any]:
    """Returns a token's logprob object. `bytes` is null for a token that is a part of a character: its bytes are not
    its text's."""
    text = tokenizer.token_text(token_id)
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
