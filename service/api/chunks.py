"""Answers in OpenAI's shapes: objects, chunks, usage and logprobs, with the receipt and timings riding along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from service.answers import Answer, Delta, OutputSequence, Token, TokenLogprobs
from service.api.encoding import event
from service.api.guard_findings import found
from service.text.tokenizer import Tokenizer

DONE: Final = b"data: [DONE]\n\n"


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Sums over all prompts, each prompt counted once, however many sequences it has."""
    each = [answer.usage() for answer in answers]
    summed = {name: sum(counts[name] for counts in each) for name in each[0]}
    return {**summed, "prompt_tokens_details": {"cached_tokens": summed["cached_tokens"]}}


def envelope(answer: Answer, id: str, kind: str) -> dict[str, Any]:
    return {
        "id": id,
        "object": kind,
        "created": answer.created,
        "model": answer.manifest.reference,
        "system_fingerprint": answer.manifest.short_digest,
    }


def riders(answer: Answer) -> dict[str, Any]:
    return {
        "digest": answer.manifest.short_digest,
        "context": answer.receipt.to_dict(),
        "timings": answer.timings(),
        **found(answer),
    }


def finish(sequence: OutputSequence) -> str | None:
    return sequence.finish_reason.value if sequence.finish_reason else None


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[Token]) -> dict[str, Any]:
    content = [
        {
            **_chat_token(tokenizer, token.id, token.logprob),
            "top_logprobs": [_chat_token(tokenizer, *top) for top in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, Any]:
    """`bytes` is null for a token that is only a part of a character: its bytes are not its text's."""
    text = tokenizer.token_text(token_id)
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}


def text_logprobs(answer: Answer, tokens: Sequence[Token], offset: int, echo: bool) -> dict[str, Any]:
    """OpenAI's four parallel lists; with `echo` the prompt's tokens first, of which the first has no logprob.

    `offset`: characters before `tokens` in the choice's text.
    """
    text = answer.tokenizer.token_text
    rows: list[tuple[int, TokenLogprobs | None]] = []
    if echo:
        rows = list(zip(answer.prompt.token_ids, [None, *answer.prompt_logprobs], strict=False))
    rows += [(token.id, TokenLogprobs(token.logprob or 0.0, token.top)) for token in tokens]
    offsets = []
    for token_id, _ in rows:
        offsets.append(offset)
        offset += len(text(token_id))
    return {
        "tokens": [text(token_id) for token_id, _ in rows],
        "token_logprobs": [each.logprob if each else None for _, each in rows],
        "top_logprobs": [{text(id): value for id, value in each.top} if each else None for _, each in rows],
        "text_offset": offsets,
    }


def chunk(head: dict[str, Any], choices: list[dict[str, Any]], **more: Any) -> bytes:
    return event({**head, "choices": choices, **more})


def ending(head: dict[str, Any], answers: Sequence[Answer]) -> bytes:
    """The chunk without choices that `stream_options.include_usage` requests for."""
    return chunk(head, [], usage=usage(answers))


def position(delta: Delta, order: dict[str, int]) -> int:
    """The choice's index: all sequences of the first prompt, then those of the second, …"""
    return order[delta.answer.request.id] * delta.answer.request.n + delta.sequence.number
