"""The knowledge base: its wire models, and the routes for documents whose passages `context.knowledge` brings in."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field
from starlette.responses import Response

from service.api.deps import Limit, OwnerDep, Service, ServiceDep, Text
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.sessions.schemas import KnowledgePage, KnowledgeShown
from service.api.shared.schemas import SessionId, Wire
from service.storage.sessions import Knowledge

if TYPE_CHECKING:
    from service.storage.sessions import KnowledgeBase


class KnowledgeBody(Wire):
    """A document for all chats of the caller, or with `session_id` for one session."""

    text: Annotated[str, Field(min_length=1)]
    title: str | None = None
    session_id: SessionId | None = None


router = Router(prefix="/v1/knowledge", tags=["knowledge"])
BODY: Final = json_body(KnowledgeBody)


@router.post("", response_model=KnowledgeShown, status_code=201)
async def add(service: ServiceDep, owner: OwnerDep, body: KnowledgeBody = BODY) -> Response:
    """Stores a document; searches find it from now on."""
    base = await _base(service)
    return json_response(_shown(await base.add(owner, body.text, body.title, body.session_id)), 201)


@router.get("", response_model=KnowledgePage)
async def list_knowledge(
    service: ServiceDep, owner: OwnerDep, session_id: Text | None = None, cursor: Text | None = None, limit: Limit = 50
) -> Response:
    """Lists the caller's documents without their texts, newest first; with `session_id` those of one session."""
    page = await (await _base(service)).all(owner, session_id=session_id, cursor=cursor, limit=limit)
    data = [{name: value for name, value in _shown(each).items() if name != "text"} for each in page.data]
    return json_response({"data": data, "next_cursor": page.next_cursor})


@router.get("/{knowledge_id}", response_model=KnowledgeShown)
async def get_knowledge(service: ServiceDep, owner: OwnerDep, knowledge_id: str) -> Response:
    """Returns one document."""
    return json_response(_shown(await (await _base(service)).get(owner, knowledge_id)))


@router.delete("/{knowledge_id}", status_code=204)
async def delete_knowledge(service: ServiceDep, owner: OwnerDep, knowledge_id: str) -> Response:
    """Deletes a document; searches find it no more."""
    await (await _base(service)).delete(owner, knowledge_id)
    return Response(status_code=204)


async def _base(service: Service) -> KnowledgeBase:
    return (await service.store()).knowledge


def _shown(document: Knowledge) -> dict[str, Any]:
    return asdict(document) | {"created_at": document.created_at.isoformat()}
