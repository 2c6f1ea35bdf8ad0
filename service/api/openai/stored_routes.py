"""These routes read, list, change and delete chat completions that were stored with `store` true."""

from __future__ import annotations

import re
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from service.api.deps import Limit, OwnerDep, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.openai.answer_schemas import DeletedCompletion, StoredCompletion, StoredCompletions, StoredMessages
from service.api.openai.lists import After, Order, cut_page, page_of
from service.api.openai.schemas import MetadataBody
from service.errors import InvalidRequest
from service.storage.model_filters import model_filter
from service.storage.sessions import StoredAnswer, WantedAnswers

router = Router(prefix="/v1/chat/completions", tags=["openai"])
METADATA: Final = json_body(MetadataBody)
KIND: Final = "chat.completion"
_FILTER: Final = re.compile(r"metadata\[((?:(?!\]\[).){1,64})\]", re.DOTALL)
"""Not `metadata[a][b]`: a value is a text."""
FILTERS: Final = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "description": "`metadata[key]=value`, once for each key.",
            "style": "deepObject",
            "explode": True,
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    ]
}


@router.get("", response_model=StoredCompletions, openapi_extra=FILTERS)
async def list_completions(
    http: Request,
    service: ServiceDep,
    owner: OwnerDep,
    model: Text | None = None,
    after: After | None = None,
    limit: Limit = 20,
    order: Order = "asc",
) -> Response:
    """Lists the caller's stored chat completions, oldest first; `metadata[key]=value` and `model` filter."""
    if model is not None:
        model_filter(model)
    query = WantedAnswers(KIND, model, _metadata_of(http), after, newest_first=order == "desc")
    completions, has_more = await (await service.store()).answers.all(owner, query, limit)
    return json_response(page_of([_shown(each) for each in completions], has_more=has_more))


@router.get("/{completion_id}", response_model=StoredCompletion)
async def get_completion(service: ServiceDep, owner: OwnerDep, completion_id: str) -> Response:
    """Returns a stored chat completion."""
    return json_response(_shown(await (await service.store()).answers.get(owner, KIND, completion_id)))


@router.post("/{completion_id}", response_model=StoredCompletion)
async def change_completion(
    service: ServiceDep, owner: OwnerDep, completion_id: str, body: MetadataBody = METADATA
) -> Response:
    """Puts other metadata in place of a stored chat completion's."""
    stored = (await service.store()).answers
    return json_response(_shown(await stored.change_metadata(owner, KIND, completion_id, body.metadata or {})))


@router.delete("/{completion_id}", response_model=DeletedCompletion)
async def delete_completion(service: ServiceDep, owner: OwnerDep, completion_id: str) -> Response:
    """Deletes a stored chat completion."""
    await (await service.store()).answers.delete(owner, KIND, completion_id)
    return json_response({"id": completion_id, "object": "chat.completion.deleted", "deleted": True})


@router.get("/{completion_id}/messages", response_model=StoredMessages)
async def completion_messages(
    service: ServiceDep,
    owner: OwnerDep,
    completion_id: str,
    after: After | None = None,
    limit: Limit = 20,
    order: Order = "asc",
) -> Response:
    """Lists the messages that a stored chat completion answers, oldest first."""
    messages = (await (await service.store()).answers.get(owner, KIND, completion_id)).asked
    return json_response(cut_page(messages, after, limit, order))


def _metadata_of(http: Request) -> dict[str, str]:
    """Returns the metadata that the query asks for. Raises InvalidRequest where it is written in another way."""
    metadata = dict[str, str]()
    for name, value in http.query_params.multi_items():
        if not name.startswith("metadata"):
            continue
        if (matched := _FILTER.fullmatch(name)) is None or matched[1] in metadata:
            raise InvalidRequest("Write `metadata[key]=value`, once for each key", param="metadata")
        metadata[matched[1]] = value
    return metadata


def _shown(stored: StoredAnswer) -> dict[str, Any]:
    return {**stored.body, "metadata": stored.metadata}
