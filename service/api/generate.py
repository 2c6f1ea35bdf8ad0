"""`POST /generate`, `/generate_stream` and `/`: TGI's routes. Maps the wire model to a request; knows no engine."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.answers import Answer, GenerationRequest, Sampling
from service.api import tgi
from service.api.bodies import json_body
from service.api.deps import Service, ServiceDep
from service.api.openapi import takes
from service.api.responses import completed, streamed
from service.api.schemas.native import GenerateBody, Parameters
from service.api.session_turns import in_session
from service.context.prompt import Chat, Ids, Text
from service.errors import UnsupportedField
from service.settings import Settings

router = APIRouter(tags=["generate"])
BODY: Final = json_body(GenerateBody)


@router.post("/generate", openapi_extra=takes(GenerateBody))
async def generate(http: Request, service: ServiceDep, body: GenerateBody = BODY) -> Response:
    """Text for a prompt, a chat or token ids; `stream` decides between one JSON body and server-sent events."""
    return await _answer(http, service, body, body.stream)


@router.post("/", openapi_extra=takes(GenerateBody))
async def generate_at_root(http: Request, service: ServiceDep, body: GenerateBody = BODY) -> Response:
    """As `/generate`: where huggingface_hub's client posts to."""
    return await _answer(http, service, body, body.stream)


@router.post("/generate_stream", openapi_extra=takes(GenerateBody))
async def generate_stream(http: Request, service: ServiceDep, body: GenerateBody = BODY) -> Response:
    """As `/generate` with `stream` true."""
    return await _answer(http, service, body, True)


async def _answer(http: Request, service: Service, body: GenerateBody, stream: bool) -> Response:
    if body.request_id:
        http.state.request_id = body.request_id
    if body.user:
        http.state.log["user"] = body.user
    request = replace(request_of(body, service.settings, stream), arrival=http.state.arrival)
    request = in_session(http, request, body.session_id, body.messages)
    if stream:
        events = tgi.events if body.text_input is None else tgi.triton_events
        return await streamed(http, service, [request], events)
    return await completed(http, service, [request], partial(_shown, body))


def _shown(body: GenerateBody, answers: Sequence[Answer]) -> dict[str, Any]:
    [answer] = answers
    if body.text_input is not None:
        return tgi.triton(answer, answer.best[0].text)
    prefix = body.inputs or "" if body.parameters.return_full_text else ""
    return tgi.answered(answer, prefix, details=bool(body.parameters.details))


def request_of(body: GenerateBody, settings: Settings, stream: bool) -> GenerationRequest:
    """The domain's request. Raises UnsupportedField for what a stream of one answer cannot do."""
    parameters = body.parameters
    if stream:
        _refuse_in_streams(parameters)
    n = parameters.n or 1
    return GenerationRequest(
        id=f"gen-{uuid.uuid4().hex}",
        source=_source(body),
        model=body.model,
        sampling=sampling_of(parameters),
        max_new_tokens=parameters.new_tokens or settings.default_max_new_tokens,
        documents=tuple(each.document() for each in body.documents or ()),
        truncate=parameters.truncate,
        context=body.context.options() if body.context else None,
        stop=tuple(parameters.stop or ()),
        include_stop=bool(parameters.include_stop),
        n=n,
        best_of=parameters.best_of or n,
        logprobs=parameters.top_n_tokens or (0 if stream or parameters.details else None),
        prompt_logprobs=0 if parameters.decoder_input_details else None,
        priority=body.priority,
        deadline_ms=body.deadline_ms,
        user=body.user or "",
    )


def _source(body: GenerateBody) -> Text | Chat | Ids:
    if body.messages is not None:
        return Chat(tuple(each.message() for each in body.messages))
    if body.input_ids is not None:
        return Ids(tuple(body.input_ids))
    return Text(body.inputs if body.inputs is not None else body.text_input or "")


def _refuse_in_streams(parameters: Parameters) -> None:
    for field, asked in (
        ("n", (parameters.n or 1) > 1),
        ("best_of", (parameters.best_of or 1) > 1),
        ("return_full_text", parameters.return_full_text),
        ("decoder_input_details", parameters.decoder_input_details),
    ):
        if asked:
            name = f"parameters.{field}"
            raise UnsupportedField(f"`{name}` cannot act in a stream: remove it, or send stream false", param=name)


def sampling_of(parameters: Parameters) -> Sampling:
    """Greedy unless `Parameters.samples`; then `temperature` is 1 where unset, as in TGI; 0 stays greedy."""
    temperature = 1.0 if parameters.temperature is None else parameters.temperature
    return Sampling(
        temperature=temperature if parameters.samples else 0.0,
        top_p=1.0 if parameters.top_p is None else parameters.top_p,
        top_k=parameters.top_k or 0,
        min_p=parameters.min_p or 0.0,
        typical_p=1.0 if parameters.typical_p is None else parameters.typical_p,
        repetition_penalty=1.0 if parameters.repetition_penalty is None else parameters.repetition_penalty,
        frequency_penalty=parameters.frequency_penalty or 0.0,
        presence_penalty=parameters.presence_penalty or 0.0,
        logit_bias=tuple((parameters.logit_bias or {}).items()),
        seed=parameters.seed,
        min_tokens=parameters.min_new_tokens or 0,
        ignore_eos=bool(parameters.ignore_eos),
    )
