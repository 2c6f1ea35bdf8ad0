"""This route lists the servers that share records."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from service.api.deps import ServiceDep
from service.api.http.encoding import json_response
from service.api.operations.instance_answer_schemas import InstanceList

router = APIRouter(tags=["operations"])


@router.get("/v1/instances", response_model=InstanceList)
async def list_instances(service: ServiceDep) -> Response:
    """Lists the servers that share this one's records, with the age of their heartbeats and what they have loaded."""
    return json_response({"data": await service.instances.all()})
