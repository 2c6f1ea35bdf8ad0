"""These routes serve `GET /v1/models`: every version and every name as an OpenAI model."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from models.manifest import Manifest
from service.api.deps import ServiceDep
from service.api.encoding import json_response
from service.api.schemas.answers.openai import Model, Models
from service.deployments.deployments import Deployments

router = APIRouter(tags=["openai"])


@router.get("/v1/models", response_model=Models)
async def list_models(service: ServiceDep) -> Response:
    """Lists names and `name:version`s, both usable as `model`."""
    return json_response({"object": "list", "data": _all(service.deployments)})


@router.get("/v1/models/{id}", response_model=Model)
async def get_model(service: ServiceDep, id: str) -> Response:
    """Returns one model by any reference; `root` is the version that it means now."""
    return json_response(_shown(id, service.deployments.resolve(id)))


def _all(deployments: Deployments) -> list[dict[str, Any]]:
    shown = []
    for name in deployments.repository.models():
        shown.append(_shown(name, deployments.resolve(name)))
        shown += [_shown(each.reference, each) for each in deployments.repository.versions(name)]
    return shown


def _shown(id: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "id": id,
        "object": "model",
        "created": int(datetime.fromisoformat(manifest.created_at).timestamp()),
        "owned_by": "dosirak",
        "root": manifest.reference,
        "parent": manifest.lineage.parent,
        "digest": manifest.short_digest,
        "precision": manifest.precision,
        "max_model_len": manifest.context_window,
    }
