"""The HTTP interface is the parts that have routes, joined by one router. It makes no part of the service.

A new part's routes are reached when the part stands in PARTS. Parts that are built on the
API, as the UI is, are handed in.
"""

from functools import cache
from types import ModuleType
from typing import Final

from fastapi import APIRouter
from starlette.routing import Route

from service.api.routes import (
    aliases,
    anthropic,
    batches,
    context,
    conversations,
    embeddings,
    feedback,
    files,
    generate,
    knowledge,
    kserve,
    kserve_repository,
    live,
    models,
    ollama,
    ollama_embeddings,
    ollama_models,
    openai,
    operations,
    profiles,
    repository,
    responses,
    rollouts,
    root,
    sessions,
    stored_completions,
    tokenizing,
)
from service.api.routes import instances as instances_routes
from service.api.routes import jobs as jobs_routes
from service.api.scopes import enforced

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
    context,
    sessions,
    knowledge,
    feedback,
    models,
    ollama_models,
    tokenizing,
    operations,
    instances_routes,
    profiles,
    live,
    root,
    repository,
    aliases,
    rollouts,
    jobs_routes,
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
