"""TGI's routes, `POST /generate`, `/generate_stream` and `/`, also in Triton's shape; and the context preview."""

from __future__ import annotations

from enum import Enum
from typing import Final

from fastapi import Request
from starlette.responses import Response

from service.api.answering.callers import for_caller, note_caller
from service.api.answering.responses import respond, respond_whole
from service.api.deps import Service, ServiceDep
from service.api.http.bodies import json_body
from service.api.http.connection import while_connected
from service.api.http.documented import Router, streams
from service.api.http.encoding import json_response
from service.api.http.headers import etag
from service.api.tgi import dialect as native
from service.api.tgi.answer_schemas import ChoicesAnswer, GenerateAnswer, GenerateEvent, Preview, TritonAnswer
from service.api.tgi.answers import ChoicesSerialiser
from service.api.tgi.dialect import TritonSerialiser
from service.api.tgi.schemas import GenerateBody
from service.errors import ContextOverflow, UnsupportedField
from service.generation.request import GenerationRequest

router = Router()
TAGS: Final[list[str | Enum]] = ["generate"]
BODY: Final = json_body(GenerateBody)


@router.post(
    "/generate",
    tags=TAGS,
    response_model=GenerateAnswer | ChoicesAnswer | TritonAnswer,
    responses=streams(GenerateEvent),
)
async def generate(http: Request, service: ServiceDep, body: GenerateBody = BODY) -> Response:
    """Generates text for a prompt, a chat or token ids; `stream` chooses between one JSON body and server-sent
    events."""
    return await _answer(http, service, body)


@router.post(
    "/", tags=TAGS, response_model=GenerateAnswer | ChoicesAnswer | TritonAnswer, responses=streams(GenerateEvent)
)
async def generate_at_root(http: Request, service: ServiceDep, body: GenerateBody = BODY) -> Response:
    """Does as `/generate`: huggingface_hub's client posts here."""
    return await _answer(http, service, body)


@router.post("/generate_stream", tags=TAGS, responses=streams(GenerateEvent), response_class=Response)
async def generate_stream(http: Request, service: ServiceDep, body: GenerateBody = BODY) -> Response:
    """Does as `/generate` with `stream` true."""
    return await _answer(http, service, body, always_streams=True)


def _request(http: Request, service: Service, body: GenerateBody, always_streams: bool = False) -> GenerationRequest:
    """Returns the request of a body, and notes its caller."""
    note_caller(http, body.request_id, body.user)
    if body.choices is not None and always_streams:
        raise UnsupportedField("`choices` are no stream: send them to /generate with stream false", param="choices")
    wording = native.ALWAYS_STREAMS if always_streams else native.NATIVE
    return native.parse(body, service.settings, stream=always_streams or body.stream, wording=wording)


async def _answer(http: Request, service: Service, body: GenerateBody, always_streams: bool = False) -> Response:
    request = _request(http, service, body, always_streams)
    if body.choices is not None:
        return await respond_whole(http, service, [request], ChoicesSerialiser())
    if body.text_input is not None and request.context is not None and request.context.inspect:
        raise UnsupportedField(
            "`context.inspect` adds to the receipt, which an answer in Triton's shape does not have: send `inputs` "
            "instead of `text_input`, or ask /v1/context/preview.",
            param="context.inspect",
        )
    kind = native.NativeSerialiser if body.text_input is None else TritonSerialiser
    return await respond(http, service, [request], kind.of(body), stream=always_streams or body.stream)


@router.post("/v1/context/preview", tags=["context"], response_model=Preview)
async def preview(http: Request, service: ServiceDep, body: GenerateBody = BODY) -> Response:
    """Returns the receipt that `/generate` would give for the same body, or the numbers of its refusal; of a session
    also its revision."""
    request = for_caller(http, _request(http, service, body), service.settings.context_policy)
    service.answers.refuse_more_than_all([request])
    headers = await _revision(service, request)
    deployment, outcome = await while_connected(http.receive, service.answers.preview(request))
    manifest = deployment.manifest
    version = {"model": manifest.reference, "version": manifest.version, "digest": manifest.short_digest}
    if isinstance(outcome, ContextOverflow):
        refusal = {"error": outcome.message, "code": outcome.code, **outcome.numbers}
        return json_response({**version, "would_refuse": True, "context": None, **refusal}, headers=headers)
    shown = {**version, "would_refuse": False, "context": outcome.shown(outcome.receipt)}
    return json_response(shown, headers=headers)


async def _revision(service: Service, request: GenerationRequest) -> dict[str, str]:
    """Returns the header with the revision of the request's session before it is read; none without a session. Raises
    NotFound, Unavailable."""
    if request.turn is None:
        return {}
    store = await service.store()
    return etag((await store.get(request.turn.owner, request.turn.session)).revision)
