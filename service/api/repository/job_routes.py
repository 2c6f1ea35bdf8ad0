"""These routes serve jobs over HTTP: the progress of an import or a measurement, and its cancellation."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from service.api.deps import ServiceDep
from service.api.http.encoding import json_response
from service.api.repository.answer_schemas import JobList, JobShown

router = APIRouter(prefix="/v1/jobs", tags=["repository"])


@router.get("", response_model=JobList)
async def list_jobs(service: ServiceDep) -> Response:
    """Lists the last jobs, newest first."""
    return json_response({"data": service.jobs.all()})


@router.get("/{id}", response_model=JobShown)
async def get_job(service: ServiceDep, id: str) -> Response:
    """Returns a job's progress, and its result or error."""
    return json_response(service.jobs.get(id))


@router.delete("/{id}", response_model=JobShown)
async def cancel_job(service: ServiceDep, id: str) -> Response:
    """Ends a job that waits or runs; 409 when it has ended."""
    return json_response(service.jobs.cancel(id))
