"""Jobs over HTTP: how far an import or a measurement is, and cancelling it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from service.api.deps import ServiceDep
from service.api.encoding import json_response

router = APIRouter(prefix="/v1/jobs", tags=["repository"])


@router.get("")
async def list_jobs(service: ServiceDep) -> Response:
    """The last jobs, newest first."""
    return json_response({"data": service.jobs.all()})


@router.get("/{id}")
async def get_job(service: ServiceDep, id: str) -> Response:
    """How far a job is, and its result or error."""
    return json_response(service.jobs.get(id))


@router.delete("/{id}")
async def cancel_job(service: ServiceDep, id: str) -> Response:
    """End a job that waits or runs; 409 when it has ended."""
    return json_response(service.jobs.cancel(id))
