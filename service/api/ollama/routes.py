"""These routes are Ollama's `POST /api/chat` and `POST /api/generate`. Its clients' `Content-Type` says anything."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import Request
from starlette.responses import Response

from models.manifest import Manifest
from service.api.answering.callers import for_caller
from service.api.answering.responses import respond
from service.api.deps import Service, ServiceDep
from service.api.http.audit_notes import note_change
from service.api.http.bodies import json_body
from service.api.http.connection import while_connected
from service.api.http.documented import Router, line_stream
from service.api.http.encoding import json_response
from service.api.http.headers import key_of
from service.api.http.scopes import MODELS_WRITE, require
from service.api.ollama.answer_schemas import OllamaChatAnswer, OllamaGenerateAnswer
from service.api.ollama.dialect import (
    ChatSerialiser,
    GenerateSerialiser,
    OllamaSerialiser,
    parse_chat,
    parse_generate,
)
from service.api.ollama.schemas import OllamaBody, OllamaChatBody, OllamaGenerateBody, OllamaMessage
from service.api.shared.schemas import Wire
from service.deployments.deployment import DeploymentState
from service.deployments.deployments import Deployments
from service.errors import ContextOverflow
from service.generation.admission import NOT_LOADED
from service.generation.request import GenerationRequest

router = Router(tags=["ollama"])
CHAT: Final = json_body(OllamaChatBody, any_type=True)
GENERATE: Final = json_body(OllamaGenerateBody, any_type=True)
STAND_IN: Final = "a"
"""A text in place of none, with which the fields of a load are checked."""
_OF_A_LOAD: Final = frozenset({"model", "keep_alive", "stream"})


@router.post("/api/chat", response_model=OllamaChatAnswer, responses=line_stream(OllamaChatAnswer))
async def chat(http: Request, service: ServiceDep, body: OllamaChatBody = CHAT) -> Response:
    """Answers a chat, as a stream of JSON lines unless `stream` is false. Without messages it loads the model, or with
    `keep_alive` 0 unloads it."""
    if not body.messages:
        request = parse_chat(body.model_copy(update={"messages": [OllamaMessage(role="user", content=STAND_IN)]}))
        return await _without_text(http, service, body, request, ChatSerialiser)
    return await respond(http, service, [parse_chat(body)], ChatSerialiser(), stream=body.stream is not False)


@router.post("/api/generate", response_model=OllamaGenerateAnswer, responses=line_stream(OllamaGenerateAnswer))
async def generate(http: Request, service: ServiceDep, body: OllamaGenerateBody = GENERATE) -> Response:
    """Answers a prompt, as a stream of JSON lines unless `stream` is false. Without a prompt it loads the model, or
    with `keep_alive` 0 unloads it."""
    if not body.prompt:
        request = parse_generate(body.model_copy(update={"prompt": STAND_IN}))
        return await _without_text(http, service, body, request, GenerateSerialiser)
    return await respond(http, service, [parse_generate(body)], GenerateSerialiser(), stream=body.stream is not False)


async def _without_text(
    http: Request,
    service: Service,
    body: OllamaBody,
    request: GenerationRequest,
    serialiser: type[OllamaSerialiser],
) -> Response:
    return json_response(serialiser.without_text(*await load_or_unload(http, service, body, request)))


async def load_or_unload(
    http: Request, service: Service, body: Wire, request: GenerationRequest
) -> tuple[str, Literal["load", "unload"]]:
    """Loads a model, or with `keep_alive` 0 unloads it, once it does not drain or load. Returns the version and which
    of both was done; done twice it is the same, so an Idempotency-Key is only checked. Unloading takes a model from all
    callers: it needs the scope models:write. `request` is what the body's other fields ask of an answer, for a text
    that stands in for none: raises what it would be refused with."""
    key_of(http)
    keep_alive, model = request.keep_alive, request.model or ""
    note_change(http, f"deployments.{'unload' if keep_alive == 0 else 'load'}", model)
    model = service.deployments.allowed(http.state.models, model) or model
    if keep_alive == 0:
        require(http, MODELS_WRITE)
    done = await while_connected(http.receive, _loaded_or_unloaded(service, http.state.owner, model, keep_alive))
    more = (getattr(body, name) for name in body.model_fields_set - _OF_A_LOAD)
    if keep_alive != 0 and any(value not in (None, "", []) for value in more):
        await _require_answerable(http, service, request)
    return done


async def _require_answerable(http: Request, service: Service, request: GenerationRequest) -> None:
    """Raises what the request would be refused with, also where its answer would not fit."""
    request = for_caller(http, request, service.settings.context_policy)
    _, found = await while_connected(http.receive, service.answers.preview(request))
    if isinstance(found, ContextOverflow):
        raise found


async def _loaded_or_unloaded(
    service: Service, owner: str, model: str, keep_alive: float | None
) -> tuple[str, Literal["load", "unload"]]:
    async with service.answers.waiting.waiting(NOT_LOADED, owner):
        if keep_alive == 0:
            await service.deployments.settled(model, DeploymentState.LOADING)
            return (await _unload(service.deployments, model)).reference, "unload"
        await service.deployments.settled(model, DeploymentState.DRAINING)
        deployment = await service.deployments.ensure_loaded(model)
        if keep_alive is not None:
            service.deployments.keep_alive(deployment, keep_alive)
        return deployment.manifest.reference, "load"


async def _unload(deployments: Deployments, reference: str) -> Manifest:
    """Begins to unload the version, where it is loaded, and returns it. Raises NotFound, InvalidRequest, and Conflict
    where it is still loading."""
    manifest = deployments.resolve(reference)
    loaded = (each for each in deployments.all() if each.state is not DeploymentState.DRAINING)
    if any(each.manifest.reference == manifest.reference for each in loaded):
        await deployments.unload(manifest.reference)
    return manifest
