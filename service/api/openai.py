"""`/v1/chat/completions` and `/v1/completions`: OpenAI's routes. Maps the wire models to requests; knows no engine."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.answers import Answer, Delta, GenerationRequest, OutputSequence, Sampling, Token
from service.api import chunks
from service.api.bodies import json_body
from service.api.deps import Service, ServiceDep
from service.api.openapi import takes
from service.api.responses import completed, streamed
from service.api.schemas.openai import ChatBody, CompletionBody, OpenAISampling
from service.api.session_turns import in_session
from service.context.prompt import Chat, Source

PLACEHOLDERS: Final = frozenset({"tgi", "dummy"})
"""What huggingface_hub's clients send as `model` when the address alone decides."""
router = APIRouter(tags=["openai"])
CHAT: Final = json_body(ChatBody)
COMPLETION: Final = json_body(CompletionBody)


@router.post("/v1/chat/completions", openapi_extra=takes(ChatBody))
async def chat_completions(http: Request, service: ServiceDep, body: ChatBody = CHAT) -> Response:
    """OpenAI's chat completions."""
    sources = [Chat(tuple(each.message() for each in body.messages))]
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    documents = tuple(each.document() for each in body.documents or ())
    requests = _requests(body, service, sources, kind="chatcmpl", logprobs=logprobs, documents=documents)
    requests = [in_session(http, request, body.session_id, body.messages) for request in requests]
    return await _reply(http, service, requests, ChatDialect(body, requests))


@router.post("/v1/completions", openapi_extra=takes(CompletionBody))
async def completions(http: Request, service: ServiceDep, body: CompletionBody = COMPLETION) -> Response:
    """OpenAI's text completions: a string, strings, token ids, or lists of token ids."""
    requests = _requests(
        body,
        service,
        body.prompt,
        kind="cmpl",
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        best_of=body.best_of or body.n or 1,
    )
    return await _reply(http, service, requests, TextDialect(body, requests))


def _requests(
    body: OpenAISampling, service: Service, sources: Sequence[Source], *, kind: str, **more: Any
) -> list[GenerationRequest]:
    """One request a prompt. Each prompt of several draws its own seed from the given one, as if it were sent alone."""
    model = body.model
    if model in PLACEHOLDERS and model not in service.deployments.repository.models():
        model = None
    n = body.n or 1
    fields: dict[str, Any] = {"best_of": n, **more}
    return [
        GenerationRequest(
            id=f"{kind}-{uuid.uuid4().hex}",
            source=source,
            model=model,
            sampling=_sampling(body),
            max_new_tokens=body.new_tokens,
            context=body.context.options() if body.context else None,
            stop=tuple(body.stop or ()),
            include_stop=bool(body.include_stop_str_in_output),
            n=n,
            priority=body.priority or 0,
            deadline_ms=body.deadline_ms,
            user=body.user or "",
            **fields,
        )
        for source in sources
    ]


def _sampling(body: OpenAISampling) -> Sampling:
    """OpenAI's defaults: temperature 1, everything else off. `top_p` 0 means the likeliest token alone."""
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else max(body.top_p, 1e-9),
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        typical_p=1.0 if body.typical_p is None else body.typical_p,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=tuple((body.logit_bias or {}).items()),
        seed=body.seed,
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
    )


async def _reply(http: Request, service: Service, requests: Sequence[GenerationRequest], dialect: Dialect) -> Response:
    body = dialect.body
    requests = [replace(request, arrival=http.state.arrival) for request in requests]
    if body.request_id:
        http.state.request_id = body.request_id
    if body.user:
        http.state.log["user"] = body.user
    if body.stream:
        return await streamed(http, service, requests, dialect.events, chunks.DONE)
    return await completed(http, service, requests, dialect.whole)


class Dialect(ABC):
    """How one route shows answers. Holds what a stream has shown so far; one request's."""

    kind: str
    chunk_kind: str

    def __init__(self, body: OpenAISampling, requests: Sequence[GenerationRequest]) -> None:
        self.body = body
        self._requests = requests
        self._order = {request.id: number for number, request in enumerate(requests)}
        self._answers: dict[str, Answer] = {}
        self._opened: set[int] = set()
        options = body.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The body of a unary answer; the receipts of several prompts ride on their choices."""
        choices = []
        for number, answer in enumerate(answers):
            more = chunks.riders(answer) if len(answers) > 1 else {}
            for place, sequence in enumerate(answer.best):
                index = number * answer.request.n + place
                choices.append({"index": index, **self.choice(answer, sequence), **more})
        head = chunks.envelope(answers[0], self._requests[0].id, self.kind)
        alone = chunks.riders(answers[0]) if len(answers) == 1 else {}
        return {**head, "choices": choices, "usage": chunks.usage(answers), **alone}

    def events(self, delta: Delta) -> Iterable[bytes]:
        """A token's chunk; around it the opening of its choice, the end of its choice, the end of everything."""
        self._answers[delta.answer.request.id] = delta.answer
        index = chunks.position(delta, self._order)
        head = chunks.envelope(delta.answer, self._requests[0].id, self.chunk_kind)
        usage: dict[str, Any] = {"usage": chunks.usage(list(self._answers.values()))} if self._continuous_usage else {}
        if not usage and self._include_usage:
            usage = {"usage": None}
        shown = [] if index in self._opened else self.opening(delta)
        self._opened.add(index)
        if delta.token or delta.text:
            shown = [*shown, self.delta(delta)]
        for choice in shown:
            yield chunks.chunk(head, [{"index": index, **choice, "finish_reason": None}], **usage)
        if delta.finish_reason is None:
            return
        more = chunks.riders(delta.answer) if delta.last else {}
        end = {"index": index, **self.nothing(), "finish_reason": chunks.finish(delta.sequence)}
        yield chunks.chunk(head, [end], **usage, **more)
        if self._include_usage and self._all_ended():
            yield chunks.ending(head, list(self._answers.values()))

    def _all_ended(self) -> bool:
        ended = [each.finish_reason for answer in self._answers.values() for each in answer.sequences]
        return len(self._answers) == len(self._requests) and None not in ended

    @abstractmethod
    def choice(self, answer: Answer, sequence: OutputSequence) -> dict[str, Any]: ...

    @abstractmethod
    def opening(self, delta: Delta) -> list[dict[str, Any]]: ...

    @abstractmethod
    def delta(self, delta: Delta) -> dict[str, Any]: ...

    @abstractmethod
    def nothing(self) -> dict[str, Any]: ...


class ChatDialect(Dialect):
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def choice(self, answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
        message = {"role": "assistant", "content": sequence.text, "refusal": None}
        logprobs = self._logprobs(answer, sequence.tokens)
        return {"message": message, "logprobs": logprobs, "finish_reason": chunks.finish(sequence)}

    def opening(self, delta: Delta) -> list[dict[str, Any]]:
        return [{"delta": {"role": "assistant", "content": ""}, "logprobs": None}]

    def delta(self, delta: Delta) -> dict[str, Any]:
        tokens = [delta.token] if delta.token else []
        return {"delta": {"content": delta.text}, "logprobs": self._logprobs(delta.answer, tokens)}

    def nothing(self) -> dict[str, Any]:
        return {"delta": {}, "logprobs": None}

    def _logprobs(self, answer: Answer, tokens: Sequence[Token]) -> dict[str, Any] | None:
        return None if answer.request.logprobs is None else chunks.chat_logprobs(answer.tokenizer, tokens)


class TextDialect(Dialect):
    kind = chunk_kind = "text_completion"

    def __init__(self, body: CompletionBody, requests: Sequence[GenerationRequest]) -> None:
        super().__init__(body, requests)
        self._echo = bool(body.echo)
        self._offsets: dict[int, int] = {}

    def choice(self, answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
        text = self._prompt(answer) + sequence.text
        logprobs = self._logprobs(answer, sequence.tokens, 0, self._echo)
        return {"text": text, "logprobs": logprobs, "finish_reason": chunks.finish(sequence)}

    def opening(self, delta: Delta) -> list[dict[str, Any]]:
        if not self._echo:
            return []
        return [{"text": self._prompt(delta.answer), "logprobs": self._logprobs(delta.answer, [], 0, True)}]

    def delta(self, delta: Delta) -> dict[str, Any]:
        """Offsets go on from what the choice has shown: the echoed prompt and its tokens."""
        index = chunks.position(delta, self._order)
        offset = self._offsets.get(index, len(self._prompt(delta.answer)))
        tokens = [delta.token] if delta.token else []
        self._offsets[index] = offset + sum(len(delta.answer.tokenizer.token_text(token.id)) for token in tokens)
        return {"text": delta.text, "logprobs": self._logprobs(delta.answer, tokens, offset, False)}

    def nothing(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def _prompt(self, answer: Answer) -> str:
        """The echoed prompt as the model saw it, without the special tokens that the tokenizer added."""
        return answer.tokenizer.decode(answer.prompt.token_ids) if self._echo else ""

    def _logprobs(self, answer: Answer, tokens: Sequence[Token], offset: int, echo: bool) -> dict[str, Any] | None:
        return None if answer.request.logprobs is None else chunks.text_logprobs(answer, tokens, offset, echo)
