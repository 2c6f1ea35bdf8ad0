"""These routes serve `GET /v1/models`: every version and every name as an OpenAI model, and as Anthropic's to its
clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Request
from starlette.responses import Response

from models.manifest import Manifest
from service.api.deps import ModelsDep, ServiceDep, Text
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.http.errors import ErrorDialect, dialect_of
from service.api.shared.answer_schemas import Shown, Time
from service.deployments.deployments import Deployments, is_allowed
from service.errors import InvalidRequest

router = Router(tags=["openai"])
PAGE: Final = 20
"""Anthropic's size of a page."""
PageSize = Annotated[int, Query(ge=1, le=1000)]
Named = tuple[str, Manifest]


class Model(Shown):
    """`root` is the version that `id` means now; `parent` the version that it was made from, as of an adapter its base;
    null for an original."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    digest: str
    precision: str
    max_model_len: int


class Models(Shown):
    object: Literal["list"]
    data: list[Model]


class AnthropicModel(Shown):
    """A version or a name. `max_input_tokens` and `max_tokens` are the window."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: Time
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int
    digest: str


class AnthropicModels(Shown):
    """One page. `first_id` and `last_id` are null where it is empty."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


@router.get("/v1/models", response_model=Models | AnthropicModels)
async def list_models(
    http: Request,
    service: ServiceDep,
    models: ModelsDep,
    limit: PageSize = PAGE,
    after_id: Text | None = None,
    before_id: Text | None = None,
) -> Response:
    """Lists names and `name:version`s, both usable as `model`. With the header `anthropic-version` it answers as
    Anthropic, by pages of `limit` before or after an id; the parameters act then only."""
    every = await asyncio.to_thread(lambda: list(_all(service.deployments)))
    named = [each for each in every if is_allowed(models, each[1])]
    if _is_anthropics(http):
        return json_response(_page(service.deployments, named, limit, after_id, before_id))
    return json_response(
        {"object": "list", "data": [_openai(*each, service.deployments.window(each[1])) for each in named]}
    )


@router.get("/v1/models/{id}", response_model=Model | AnthropicModel)
async def get_model(http: Request, service: ServiceDep, models: ModelsDep, id: str) -> Response:
    """Returns one model by any reference; `root` is the version that it means now."""
    show = _anthropic if _is_anthropics(http) else _openai
    manifest = service.deployments.resolve(service.deployments.allowed(models, id))
    return json_response(show(id, manifest, service.deployments.window(manifest)))


def _is_anthropics(http: Request) -> bool:
    return dialect_of(http.scope) is ErrorDialect.ANTHROPIC


def _all(deployments: Deployments) -> Iterator[Named]:
    for name in deployments.repository.models():
        if (current := deployments.meant_by(name)) is not None:
            yield name, current
        yield from ((each.reference, each) for each in deployments.repository.versions(name))


def _page(
    deployments: Deployments, named: list[Named], limit: int, after_id: str | None, before_id: str | None
) -> dict[str, Any]:
    if after_id is not None and before_id is not None:
        raise InvalidRequest("`before_id` cannot act beside `after_id`: send one of them", param="before_id")
    ids = [id for id, _ in named]
    cut = after_id if before_id is None else before_id
    if cut is not None and cut not in ids:
        param = "after_id" if before_id is None else "before_id"
        raise InvalidRequest(f"`{param}` is not in the list of models: send an id that a page gave", param=param)
    if before_id is not None:
        rest = named[: ids.index(before_id)]
        shown = rest[-limit:]
    else:
        rest = named[ids.index(after_id) + 1 :] if after_id is not None else named
        shown = rest[:limit]
    data = [_anthropic(*each, deployments.window(each[1])) for each in shown]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"data": data, "has_more": len(rest) > len(shown), **ends}


def _openai(id: str, manifest: Manifest, window: int) -> dict[str, Any]:
    return {
        "id": id,
        "object": "model",
        "created": int(datetime.fromisoformat(manifest.created_at).timestamp()),
        "owned_by": "dosirak",
        "root": manifest.reference,
        "parent": manifest.lineage.parent,
        "digest": manifest.short_digest,
        "precision": manifest.precision,
        "max_model_len": window,
    }


def _anthropic(id: str, manifest: Manifest, window: int) -> dict[str, Any]:
    return {
        "type": "model",
        "id": id,
        "display_name": id,
        "created_at": manifest.created_at,
        "lifecycle": "active",
        "max_input_tokens": window,
        "max_tokens": window,
        "digest": manifest.short_digest,
    }
