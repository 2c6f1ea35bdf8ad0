"""The HTTP interface is the parts that have routes, joined by one router. It makes no part of the service.

A new part's routes are reached when the part stands in PARTS.
"""

from functools import cache
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
from service.ui import routes as ui

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
    ui,
)
"""The HTTP interface; an earlier part's routes are matched first."""


@cache
def interface() -> APIRouter:
    """Returns the routes of all parts. FastAPI works one out at the first request that reaches it, which takes 3 ms:
    apps of one process share what was worked out."""
    joined = APIRouter(dependencies=[enforced()])
    for part in PARTS:
        joined.include_router(part.router)
    return joined


def plain_routes() -> list[Route]:
    """The routes of all parts, as each part declares them."""
    return [route for part in PARTS for route in part.router.routes if isinstance(route, Route)]
