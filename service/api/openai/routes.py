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
from service.api.openai.schemas import ChatBody, CompletionBody, Metadata, OpenAISampling
from service.api.shared.serialiser import Serialiser
from service.generation.answer import Answer
from service.generation.request import GenerationRequest
from service.storage.sessions import StoredAnswer

router = Router(tags=["openai"])
MOST_LOGGED: Final = 32
"""Characters of a key or a value of metadata in the log: an id is as long, a text is not."""
CHAT: Final = json_body(ChatBody)
COMPLETION: Final = json_body(CompletionBody)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=streams(ChatChunk, openai.LAST))
async def chat_completions(http: Request, service: ServiceDep, owner: OwnerDep, body: ChatBody = CHAT) -> Response:
    """OpenAI's chat completions. With `store` one is stored before its end is sent."""
    requests = openai_chat.parse(body, service.deployments.repository.models)
    serialiser = openai_chat.ChatSerialiser(body, requests)
    store = None
    if body.store:
        stored = (await service.answers.conversations.store_for_writing()).answers
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
    note_fields(http, body.metadata, body.prompt_cache_key)
    return await respond(http, service, requests, serialiser, stream=bool(body.stream), store=store)


def note_fields(http: Request, metadata: Metadata | None, cache_key: str | None) -> None:
    """Adds to the log line what the body says of itself; of metadata the beginnings."""
    if metadata:
        cut = {key[:MOST_LOGGED]: value[:MOST_LOGGED] for key, value in metadata.items()}
        http.state.log["metadata"] = cut
    if cache_key:
        http.state.log["prompt_cache_key"] = cache_key


def _row(body: ChatBody, serialiser: openai_chat.ChatSerialiser, answer: Answer) -> StoredAnswer:
    """Returns a completion without the inspection that the request may want, which no store gets."""
    id, model = answer.request.id, answer.manifest.reference
    messages = openai_chat.listed(body, id)
    completion = {**serialiser.whole([answer]), "context": answer.receipt.to_dict()}
    return StoredAnswer(id, "chat.completion", model, body.metadata or {}, messages, completion)
