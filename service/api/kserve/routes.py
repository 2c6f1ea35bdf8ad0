"""These routes are the KServe v2 protocol (Open Inference Protocol) over HTTP, with Triton's generate extension: state,
metadata, generation. A path names a model by any of our references, or by its name and `/versions/{version}`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Request
from starlette.responses import Response

from models.manifest import Manifest, ModelReference
from models.repository.repository import Repository
from service.api.answering.responses import respond
from service.api.deps import ServiceDep
from service.api.http.bodies import json_body, object_of, read_bytes
from service.api.http.documented import Router, streams, takes
from service.api.http.encoding import json_response
from service.api.http.fields import model_of
from service.api.kserve import dialect as kserve
from service.api.kserve.answer_schemas import (
    InferAnswer,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
    TextAnswer,
)
from service.api.kserve.schemas import TEXT_INPUT, TEXT_OUTPUT, InferBody, TextBody
from service.deployments.deployment import Deployment
from service.errors import InvalidRequest, Unavailable

H = TypeVar("H", bound=Callable[..., Any])
MODEL: Final = "/v2/models/{model}"
VERSION: Final = "/versions/{version}"
EXTENSIONS: Final = ("generate", "model_repository", "binary_tensor_data", "parameters")
PLATFORM: Final = "dosirak_safetensors"
BINARY: Final = "application/octet-stream"
JSON_LENGTH: Final = "Inference-Header-Content-Length"
BINARY_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "One answer.", "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}
}
router = Router(tags=["kserve"])
TEXT: Final = json_body(TextBody, any_type=True)


def _reference(http: Request, model: str) -> str:
    """Returns the reference that the path spells. Raises InvalidReference, InvalidRequest for two versions, NotFound
    for a model that does not answer the caller."""
    reference, version = ModelReference.parse(model), http.path_params.get("version")
    if version is not None and str(reference) != reference.name:
        raise InvalidRequest(f"{model} says the version already: leave /versions/{version} out, or name the model only")
    named = model if version is None else str(ModelReference(reference.name, version))
    http.app.state.service.deployments.allowed(http.state.models, named)
    return named


def _versioned(version: str) -> None:
    """Puts the path's version into the OpenAPI document; `_reference` reads it."""


ReferenceDep = Annotated[str, Depends(_reference)]


def _of_model(method: str, tail: str, **options: Any) -> Callable[[H], H]:
    """Returns a decorator that adds a route of a model, with and without a version."""

    def add(handler: H) -> H:
        for path, more in ((MODEL, []), (MODEL + VERSION, [Depends(_versioned)])):
            router.add_api_route(path + tail, handler, methods=[method], dependencies=more, **options)
        return handler

    return add


@router.get("/v2", response_model=ServerMetadata)
async def server_metadata(service: ServiceDep) -> Response:
    """Returns this server's name, version and extensions."""
    return json_response({"name": "Dosirak", "version": service.version, "extensions": EXTENSIONS})


@router.get("/v2/health/live", response_model=Live)
async def server_live() -> Response:
    """Returns 200 while the process answers."""
    return json_response({"live": True})


@router.get("/v2/health/ready", response_model=Ready)
async def server_ready(service: ServiceDep) -> Response:
    """Does as `GET /health`."""
    service.require_ready()
    return json_response({"ready": True})


@_of_model("GET", "", response_model=ModelMetadata)
async def model_metadata(service: ServiceDep, reference: ReferenceDep) -> Response:
    """Returns a model's versions and tensors. Every other parameter of a generation is optional, as a tensor too."""
    manifest = service.deployments.resolve(reference)
    versions = await asyncio.to_thread(_versions, service.deployments.repository, reference, manifest)
    shown = {
        "name": manifest.name,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": [{"name": TEXT_INPUT, "datatype": "BYTES", "shape": [1]}],
        "outputs": [{"name": TEXT_OUTPUT, "datatype": "BYTES", "shape": [1]}],
    }
    return json_response(shown)


def _versions(repository: Repository, reference: str, manifest: Manifest) -> list[str]:
    if reference != manifest.name:
        return [manifest.version]
    return [each.version for each in repository.versions(manifest.name)]


@_of_model("GET", "/ready", response_model=ModelReady)
async def model_ready(service: ServiceDep, reference: ReferenceDep) -> Response:
    """Returns 200 where the model would answer at once, else 503: also one that its first request would load."""
    manifest, deployment = service.deployments.resolve(reference), service.deployments.deployed(reference)
    if deployment is None or not deployment.is_serving:
        raise Unavailable(_why_not(manifest.reference, deployment))
    return json_response({"name": manifest.name, "ready": True})


def _why_not(reference: str, deployment: Deployment | None) -> str:
    if deployment is None:
        load = f"POST /v2/repository/models/{reference}/load"
        return f"{reference} is not loaded: its first request loads it, and so does {load}"
    state, cause = deployment.shown_state.value, deployment.cause
    return f"{deployment.manifest.reference} is {state}: {cause or 'try again shortly'}"


@_of_model("POST", "/generate", response_model=TextAnswer)
async def generate(http: Request, service: ServiceDep, reference: ReferenceDep, body: TextBody = TEXT) -> Response:
    """Answers a prompt in Triton's shape."""
    request = kserve.parse(body, reference, service.settings)
    return await respond(http, service, [request], kserve.TextSerialiser(body.id), stream=False)


@_of_model("POST", "/generate_stream", responses=streams(TextAnswer), response_class=Response)
async def generate_stream(
    http: Request, service: ServiceDep, reference: ReferenceDep, body: TextBody = TEXT
) -> Response:
    """Answers a prompt as events in Triton's shape, one a token; with `stream` false as one event."""
    request = kserve.parse_stream(body, reference, service.settings)
    serialiser = kserve.TextSerialiser(body.id, in_one_event=body.stream is False)
    return await respond(http, service, [request], serialiser, stream=True)


@_of_model("POST", "/infer", response_model=InferAnswer, responses=BINARY_ANSWER, openapi_extra=takes(InferBody))
async def infer(http: Request, service: ServiceDep, reference: ReferenceDep) -> Response:
    """Does as `/generate`, with tensors: `text_input`, and parameters by their names. Answers `text_output`."""
    head, behind = kserve.divided(await read_bytes(http), http.headers.get(JSON_LENGTH))
    body = model_of(http, InferBody, object_of(head))
    text = model_of(http, TextBody, kserve.fields_of(body, behind))
    request = kserve.parse(text, reference, service.settings)
    answer = await respond(http, service, [request], kserve.TensorSerialiser(body), stream=False)
    return _packed(answer) if body.wants_binary else answer


def _packed(answer: Response) -> Response:
    """Returns the answer with its text as bytes behind the JSON, and all its headers."""
    content, length = kserve.packed(bytes(answer.body))
    headers = {name: value for name, value in answer.headers.items() if name not in ("content-length", "content-type")}
    return Response(content, headers={**headers, JSON_LENGTH: str(length)}, media_type=BINARY)
