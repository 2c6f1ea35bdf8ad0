"""These routes are OpenAI's: `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from fastapi import Request
from starlette.responses import Response

from service.api.answering.callers import note_caller
from service.api.answering.responses import respond
from service.api.answering.stored_responses import AnswerStore
from service.api.deps import OwnerDep, Service, ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import Router, streams
from service.api.openai import chat as openai_chat
from service.api.openai import completions as openai_completions
from service.api.openai import dialect as openai
from service.api.openai.answer_schemas import ChatChunk, ChatCompletion, TextCompletion
from service.api.openai.schemas import ChatBody, CompletionBody, OpenAISampling
from service.api.shared.serialiser import Serialiser
from service.generation.answer import Answer
from service.generation.request import GenerationRequest
from service.storage.sessions import StoredAnswer

router = Router(tags=["openai"])
LOGGED: Final = ("metadata", "prompt_cache_key")
"""Fields that the log keeps."""
CHAT: Final = json_body(ChatBody)
COMPLETION: Final = json_body(CompletionBody)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=streams(ChatChunk, openai.LAST))
async def chat_completions(http: Request, service: ServiceDep, owner: OwnerDep, body: ChatBody = CHAT) -> Response:
    """OpenAI's chat completions. With `store` one is stored before its end is sent."""
    requests = openai_chat.parse(body, service.deployments.repository.models)
    serialiser = openai_chat.ChatSerialiser(body, requests)
    store = None
    if body.store:
        stored = (await service.answers.conversations.store()).answers
        store = AnswerStore(stored, owner, partial(_row, body, serialiser))
    return await _answer(http, service, body, requests, serialiser, store)


@router.post("/v1/completions", response_model=TextCompletion, responses=streams(TextCompletion, openai.LAST))
async def completions(http: Request, service: ServiceDep, body: CompletionBody = COMPLETION) -> Response:
    """OpenAI's text completions: a string, strings, token ids, or lists of token ids."""
    requests = openai_completions.parse(body, service.deployments.repository.models)
    return await _answer(http, service, body, requests, openai_completions.CompletionSerialiser(body, requests))


async def _answer(
    http: Request,
    service: Service,
    body: OpenAISampling,
    requests: Sequence[GenerationRequest],
    serialiser: Serialiser,
    store: AnswerStore | None = None,
) -> Response:
    note_caller(http, body.request_id, body.user or body.safety_identifier)
    http.state.log.update({name: value for name in LOGGED if (value := getattr(body, name))})
    return await respond(http, service, requests, serialiser, stream=bool(body.stream), store=store)


def _row(body: ChatBody, serialiser: openai_chat.ChatSerialiser, answer: Answer) -> StoredAnswer:
    """Returns a completion without the inspection that the request may want, which no store gets."""
    id, model = answer.request.id, answer.manifest.reference
    messages = openai_chat.listed(body, id)
    completion = {**serialiser.whole([answer]), "context": answer.receipt.to_dict()}
    return StoredAnswer(id, "chat.completion", model, body.metadata or {}, messages, completion)
