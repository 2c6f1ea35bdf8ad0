"""The HTTP interface is the parts that have routes, joined by one router. It makes no part of the service.

A new part's routes are reached when the part stands in PARTS. Parts that are built on the API, as the UI is, are
handed in.
"""

from functools import cache
from types import ModuleType
from typing import Final

from fastapi import APIRouter
from starlette.routing import Route

from service.api.anthropic import routes as anthropic
from service.api.http.scopes import enforced
from service.api.kserve import repository_routes as kserve_repository
from service.api.kserve import routes as kserve
from service.api.ollama import embeddings as ollama_embeddings
from service.api.ollama import model_routes as ollama_models
from service.api.ollama import routes as ollama
from service.api.openai import embeddings
from service.api.openai import routes as openai
from service.api.openai import stored_routes as stored_completions
from service.api.openai.files import batch_routes as batches
from service.api.openai.files import routes as files
from service.api.openai.responses import conversation_routes as conversations
from service.api.openai.responses import routes as responses
from service.api.operations import audit, keys, live, profiles, root, usage
from service.api.operations import model_routes as models
from service.api.operations import routes as operations
from service.api.repository import alias_routes as aliases
from service.api.repository import routes as repository
from service.api.sessions import feedback, knowledge
from service.api.sessions import routes as sessions
from service.api.tgi import routes as generate
from service.api.tgi import tokenizing_routes as tokenizing

PARTS: Final = (
    generate,
    openai,
    stored_completions,
    embeddings,
    files,
    conversations,
    responses,
    batches,
    anthropic,
    kserve,
    kserve_repository,
    ollama,
    ollama_embeddings,
    sessions,
    knowledge,
    feedback,
    models,
    ollama_models,
    tokenizing,
    operations,
    profiles,
    keys,
    audit,
    usage,
    live,
    root,
    repository,
    aliases,
)
"""The HTTP interface; an earlier part's routes are matched first."""


@cache
def interface(*more: ModuleType) -> APIRouter:
    """Returns the routes of all parts, then those of `more`. FastAPI works a route out at its first request, in 3 ms;
    apps of one process share what was worked out."""
    joined = APIRouter(dependencies=[enforced()])
    for part in (*PARTS, *more):
        joined.include_router(part.router)
    return joined


def plain_routes(*more: ModuleType) -> list[Route]:
    """Returns the routes of `interface`, as each part declares them."""
    return [route for part in (*PARTS, *more) for route in part.router.routes if isinstance(route, Route)]
