"""This module writes TGI's shapes of an answer and of its events, with our own fields around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from service.api.http.encoding import event
from service.api.shared.chat_schemas import called
from service.api.shared.serialiser import WholeSerialiser, guard_field
from service.engine.protocol.messages import FinishReason
from service.generation.answer import Answer, Delta, ScoredChoice, scored
from service.generation.delta import Token
from service.generation.output_sequence import OutputSequence


def facts(answer: Answer) -> dict[str, Any]:
    """Returns which version answered and what the answer cost: the same in a unary answer and in a stream's last
    event. Only `regenerate` takes tools, so that only its answers have calls."""
    calls = answer.best[0].calls
    return {
        "id": answer.request.id,
        "model": answer.manifest.reference,
        "version": answer.manifest.version,
        "digest": answer.manifest.short_digest,
        "finish_reason": answer.finish_reason.value,
        "usage": answer.usage(),
        "timings": answer.timings(),
        "context": answer.context(),
        **({"session_id": answer.request.turn.session} if answer.request.turn else {}),
        **({"tool_calls": [called(each.id, each.name, each.arguments) for each in calls]} if calls else {}),
        **guard_field(answer),
    }


def answered(answer: Answer, prefix: str = "", details: bool = False) -> dict[str, Any]:
    """Returns the body of `/generate`. With `n` above 1, `generated_texts` has all answers, the first of them first."""
    body: dict[str, Any] = {"generated_text": prefix + answer.best[0].text, **facts(answer)}
    if answer.best[0].reasoning:
        body["reasoning"] = answer.best[0].reasoning
    if answer.request.n > 1:
        body["generated_texts"] = [prefix + sequence.text for sequence in answer.best]
    if details:
        body["details"] = _details(answer)
    return body


def _details(answer: Answer) -> dict[str, Any]:
    best, others = answer.best[0], [each for each in answer.sequences if each is not answer.best[0]]
    details = {**_sequence(answer, best), "prefill": _prefill(answer)}
    if others:
        details["best_of_sequences"] = [
            {"generated_text": each.text, **_sequence(answer, each), "prefill": []} for each in others
        ]
    return details


def _sequence(answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "finish_reason": _reason(sequence),
        "generated_tokens": len(sequence.tokens),
        "seed": sequence.seed,
        "tokens": [_token(token) for token in sequence.tokens],
    }
    if answer.request.logprobs:
        shown["top_tokens"] = [_top(answer, token) for token in sequence.tokens]
    return shown


def _prefill(answer: Answer) -> list[dict[str, Any]]:
    """Returns the prompt's tokens where the request wants them. The first has no logprob: nothing stands before it."""
    if answer.request.prompt_logprobs is None:
        return []
    logprobs = [None, *(each.logprob for each in answer.prompt_logprobs)]
    ids = answer.prompt.token_ids
    text = answer.tokenizer.token_text
    return [{"id": id, "text": text(id), "logprob": logprob} for id, logprob in zip(ids, logprobs, strict=False)]


def _reason(sequence: OutputSequence) -> str:
    """Returns one of TGI's three words: a guard's stop counts as a stop string; an end by neither a token nor a string
    was a limit."""
    if sequence.finish_reason is FinishReason.CONTENT_FILTER:
        return "stop_sequence"
    if sequence.finish_reason is FinishReason.STOP:
        return "stop_sequence" if sequence.stop_string is not None else "eos_token"
    return "length"


def _token(token: Token) -> dict[str, Any]:
    return {"id": token.id, "text": token.text, "logprob": token.logprob, "special": token.special}


def _top(answer: Answer, token: Token) -> list[dict[str, Any]]:
    tokenizer = answer.tokenizer
    return [
        {"id": id, "text": tokenizer.token_text(id), "logprob": logprob, "special": tokenizer.is_special(id)}
        for id, logprob in token.top
    ]


def events(delta: Delta) -> Iterable[bytes]:
    """Yields one event for each token. An end without a token (a deadline) has `id` null and the text that was held
    back. Where an answer may have a reasoning part or calls, a token's text is what it adds to the content, and
    `reasoning` what it adds to that part."""
    token = _token(delta.token) if delta.token else {"id": None, "text": delta.text, "logprob": None, "special": True}
    shown: dict[str, Any] = {"index": delta.index + 1, "token": token, "generated_text": None, "details": None}
    if delta.answer.is_parted:
        shown["token"] = {**token, "text": delta.text}
        shown |= {"reasoning": delta.reasoning} if delta.reasoning else {}
    if delta.token and delta.answer.request.logprobs:
        shown["top_tokens"] = _top(delta.answer, delta.token)
    if delta.last:
        shown |= {"generated_text": delta.sequence.text, "details": _stream_details(delta), **facts(delta.answer)}
    yield event(shown)


def _stream_details(delta: Delta) -> dict[str, Any]:
    return {
        "finish_reason": _reason(delta.sequence),
        "generated_tokens": len(delta.sequence.tokens),
        "input_length": len(delta.answer.prompt.token_ids),
        "seed": delta.sequence.seed,
    }


class ChoicesSerialiser(WholeSerialiser):
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        choices = scored(answer)
        likeliest = max(choices, key=lambda each: each.logprob)
        details = {name: value for name, value in facts(answer).items() if name != "finish_reason"}
        return {"choice": likeliest.text, "choices": [_choice(answer, each) for each in choices], **details}


def _choice(answer: Answer, choice: ScoredChoice) -> dict[str, Any]:
    text = answer.tokenizer.token_text
    return {
        "text": choice.text,
        "logprob": choice.logprob,
        "probability": choice.probability,
        "tokens": [
            {"id": id, "text": text(id), "logprob": logprob}
            for id, logprob in zip(choice.token_ids, choice.logprobs, strict=True)
        ],
    }
