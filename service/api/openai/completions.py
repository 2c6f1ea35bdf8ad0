"""This dialect is OpenAI's text completions: one request for each prompt; answers are texts, behind the prompt for
`echo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from service.api.openai.dialect import Models, OpenAISerialiser, requests_of
from service.api.openai.schemas import CompletionBody
from service.context.prompt import Ids, Source, Text
from service.engine.protocol.messages import TokenLogprobs
from service.generation.answer import Answer, Delta
from service.generation.delta import Token
from service.generation.output_sequence import OutputSequence
from service.generation.request import GenerationRequest
from service.text.streams import TextStream

Row = tuple[int, TokenLogprobs | None]
"""A token and its logprobs: None for the first token of a prompt."""
Placed = tuple[str, int]
"""What a token adds to the text, and at which character."""


def parse(body: CompletionBody, models: Models) -> list[GenerationRequest]:
    """Returns one request for each prompt. `models`: see `requests_of`."""
    return requests_of(
        body,
        [_source(each, body) for each in body.prompt],
        models,
        kind="cmpl",
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        best_of=body.best_of or body.n or 1,
    )


def _source(source: Text | Ids, body: CompletionBody) -> Source:
    if isinstance(source, Ids):
        return source
    return replace(source, add_special_tokens=body.add_special_tokens is not False)


class CompletionSerialiser(OpenAISerialiser):
    kind = chunk_kind = "text_completion"

    def __init__(self, body: CompletionBody, requests: Sequence[GenerationRequest]) -> None:
        super().__init__(body, requests)
        self._echo = bool(body.echo)
        self._prompts: dict[str, str] = {}
        self._placing: dict[int, _Placing] = {}

    def choice(self, answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
        prompt, echoed, rows = self._prompt(answer), self._prompt_rows(answer), _rows(sequence.tokens)
        places = [*_Placing(answer).of(echoed), *_Placing(answer, len(prompt), answer.is_inside).of(rows)]
        return {"text": prompt + sequence.text, "logprobs": _logprobs(answer, [*echoed, *rows], places)}

    def opening(self, delta: Delta) -> list[dict[str, Any]]:
        if not self._echo:
            return []
        answer, rows = delta.answer, self._prompt_rows(delta.answer)
        return [{"text": self._prompt(answer), "logprobs": _logprobs(answer, rows, _Placing(answer).of(rows))}]

    def added(self, delta: Delta) -> list[dict[str, Any]]:
        index, rows = self.index(delta), _rows([delta.token] if delta.token else [])
        placing = self._placing.get(index)
        if placing is None:
            offset, is_inside = len(self._prompt(delta.answer)), delta.answer.is_inside
            placing = self._placing[index] = _Placing(delta.answer, offset, is_inside)
        return [{"text": delta.text, "logprobs": _logprobs(delta.answer, rows, placing.of(rows))}]

    def nothing(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def _prompt(self, answer: Answer) -> str:
        """Returns the echoed prompt as the model saw it, without control tokens unless the request wants them. Decodes
        it once."""
        if not self._echo:
            return ""
        if answer.request.id not in self._prompts:
            skip = answer.request.skip_special_tokens
            text = answer.tokenizer.decode(answer.prompt.token_ids, skip_special_tokens=skip)
            self._prompts[answer.request.id] = text
        return self._prompts[answer.request.id]

    def _prompt_rows(self, answer: Answer) -> list[Row]:
        if not self._echo:
            return []
        return list(zip(answer.prompt.token_ids, [None, *answer.prompt_logprobs], strict=False))


class _Placing:
    """Says what tokens add to a text, and where, in characters; the text begins at `offset` of its choice. A control
    token has its name and takes no room; of a character's tokens the last one adds it. O(1) a token."""

    def __init__(self, answer: Answer, offset: int = 0, inside: bool = False) -> None:
        self._answer = answer
        skips = answer.request.skip_special_tokens
        self._stream: TextStream = answer.tokenizer.text_stream(skips, inside=inside)
        self._certain = offset

    def of(self, rows: Sequence[Row]) -> list[Placed]:
        """Returns the next tokens' places. Callers skip this where the request wants no logprobs."""
        if self._answer.request.logprobs is None:
            return []
        return [self._placed(token_id) for token_id, _ in rows]

    def _placed(self, token_id: int) -> Placed:
        tokenizer, before = self._answer.tokenizer, len(self._stream.ahead())
        at = self._certain + before
        text = self._stream.push(token_id)
        self._certain += len(text)
        own = (text + self._stream.ahead())[before:]
        return own or (tokenizer.token_text(token_id) if tokenizer.is_special(token_id) else ""), at


def _rows(tokens: Sequence[Token]) -> list[Row]:
    return [(token.id, TokenLogprobs(token.logprob or 0.0, token.top)) for token in tokens]


def _logprobs(answer: Answer, rows: Sequence[Row], places: Sequence[Placed]) -> dict[str, Any] | None:
    """Returns OpenAI's four parallel lists. With `echo` the prompt's tokens come first; the first of them has no
    logprob. The likeliest tokens have the token itself beside them, with the text that `tokens` has: evaluations
    compare both."""
    if answer.request.logprobs is None:
        return None
    name = answer.tokenizer.token_text
    top = [
        {own if id == token_id else name(id): value for id, value in (*known.top, (token_id, known.logprob))}
        if known
        else None
        for (token_id, known), (own, _) in zip(rows, places, strict=True)
    ]
    return {
        "tokens": [own for own, _ in places],
        "token_logprobs": [known.logprob if known else None for _, known in rows],
        "top_logprobs": top,
        "text_offset": [at for _, at in places],
    }
