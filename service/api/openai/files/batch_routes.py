"""These routes are OpenAI's `/v1/batches`: files of requests, answered in the time that clients leave over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from service.api.deps import Limit, OwnerDep, Service, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.openai.files.schemas import BatchBody, BatchPage, BatchShown
from service.api.openai.lists import page_of
from service.errors import InvalidRequest
from service.storage.files.files import DEFAULT_SECONDS
from service.storage.sessions import BatchFacts, StoredBatch

if TYPE_CHECKING:
    from service.storage.sessions import StoredBatches

router = Router(prefix="/v1/batches", tags=["batches"])
BODY: Final = json_body(BatchBody)
STATUSES: Final = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


@router.post("", response_model=BatchShown)
async def create_batch(service: ServiceDep, owner: OwnerDep, body: BatchBody = BODY) -> Response:
    """Takes a batch; its file is validated, then answered."""
    if body.endpoint not in service.batch_worker.endpoints:
        known = ", ".join(service.batch_worker.endpoints)
        raise InvalidRequest(f"`endpoint` must be one of {known}", param="endpoint")
    kept = body.output_expires_after.seconds if body.output_expires_after else DEFAULT_SECONDS
    facts = BatchFacts(endpoint=body.endpoint, output_seconds=kept, metadata=body.metadata)
    made = await (await _batches(service)).create(owner, body.input_file_id, facts)
    service.batch_worker.wake()
    return json_response(_shown(made))


@router.get("", response_model=BatchPage)
async def list_batches(service: ServiceDep, owner: OwnerDep, after: Text | None = None, limit: Limit = 20) -> Response:
    """Lists the caller's batches, newest first."""
    found, has_more = await (await _batches(service)).all(owner, after=after, limit=limit)
    return json_response(page_of([_shown(each) for each in found], has_more=has_more))


@router.get("/{batch_id}", response_model=BatchShown)
async def get_batch(service: ServiceDep, owner: OwnerDep, batch_id: str) -> Response:
    """Returns a batch with its counts."""
    return json_response(_shown(await (await _batches(service)).get(owner, batch_id)))


@router.post("/{batch_id}/cancel", response_model=BatchShown)
async def cancel_batch(service: ServiceDep, owner: OwnerDep, batch_id: str) -> Response:
    """Ends a batch; what is answered by then is in its files."""
    return json_response(_shown(await (await _batches(service)).cancel(owner, batch_id)))


async def _batches(service: Service) -> StoredBatches:
    return (await service.store()).batches


def _shown(batch: StoredBatch) -> dict[str, Any]:
    facts = batch.facts
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": facts.endpoint,
        "errors": {"object": "list", "data": facts.errors} if facts.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": facts.output_file_id,
        "error_file_id": facts.error_file_id,
        "created_at": int(batch.created_at.timestamp()),
        "expires_at": int(batch.expires_at.timestamp()),
        **{f"{status}_at": facts.times.get(status) for status in STATUSES},
        "request_counts": {"total": facts.total, "completed": facts.completed, "failed": facts.failed},
        "metadata": facts.metadata,
    }
