"""These routes are OpenAI's conversations: `/v1/conversations`. Each is a session, seen as items; `/v1/sessions` has
the same one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from service.api.deps import Limit, OwnerDep, Service, ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.http.headers import IfMatch, etag, revision_of
from service.api.openai.lists import After, Order, cut_page, page_of
from service.api.openai.responses import conversations as dialect
from service.api.openai.responses.conversation_schemas import (
    ConversationBody,
    ConversationItem,
    ConversationItems,
    ConversationItemsBody,
    ConversationShown,
    DeletedConversation,
)
from service.api.openai.schemas import MetadataBody
from service.errors import Conflict, NotFound, UnsupportedField
from service.storage.sessions import Session, SessionFields

router = Router(prefix="/v1/conversations", tags=["responses"])
NEW: Final = json_body(ConversationBody)
METADATA: Final = json_body(MetadataBody)
ITEMS: Final = json_body(ConversationItemsBody)


@router.post("", response_model=ConversationShown)
async def create_conversation(service: ServiceDep, owner: OwnerDep, body: ConversationBody = NEW) -> Response:
    """Makes a conversation, which is a new session, with items that nobody has answered yet."""
    items = body.items or []
    fields: SessionFields = {"metadata": body.metadata or {}}
    made = await (await service.store()).create(
        owner, fields, dialect.new_messages(items), dialect.result_places(items, "items")
    )
    return _one(made)


@router.get("/{conversation_id}", response_model=ConversationShown)
async def get_conversation(service: ServiceDep, owner: OwnerDep, conversation_id: str) -> Response:
    """Returns a conversation without its items."""
    with _named(conversation_id) as session:
        return _one(await (await service.store()).get(owner, session))


@router.post("/{conversation_id}", response_model=ConversationShown)
async def change_conversation(
    service: ServiceDep,
    owner: OwnerDep,
    conversation_id: str,
    body: MetadataBody = METADATA,
    if_match: IfMatch = None,
) -> Response:
    """Puts other metadata in place of a conversation's."""
    fields: SessionFields = {"metadata": body.metadata or {}}
    with _named(conversation_id) as session:
        return _one(await (await service.store()).patch(owner, session, fields, revision_of(if_match)))


@router.delete("/{conversation_id}", response_model=DeletedConversation)
async def delete_conversation(
    service: ServiceDep, owner: OwnerDep, conversation_id: str, if_match: IfMatch = None
) -> Response:
    """Deletes a conversation with its items; responses made in it stay."""
    with _named(conversation_id) as session:
        await (await service.store()).delete(owner, session, revision_of(if_match))
    return json_response({"id": dialect.conversation_id(session), "object": "conversation.deleted", "deleted": True})


@router.post("/{conversation_id}/items", response_model=ConversationItems)
async def add_items(
    http: Request,
    service: ServiceDep,
    owner: OwnerDep,
    conversation_id: str,
    body: ConversationItemsBody = ITEMS,
    if_match: IfMatch = None,
) -> Response:
    """Adds items behind all others; no model answers them."""
    _refuse_include(http)
    places, revision = dialect.result_places(body.items, "items"), revision_of(if_match)
    with _named(conversation_id) as session:
        store = await service.store()
        added = await store.add_messages(owner, session, dialect.new_messages(body.items), revision, places=places)
    return json_response(page_of([item for message in added for item in dialect.items_of(message)], has_more=False))


@router.get("/{conversation_id}/items", response_model=ConversationItems)
async def list_items(
    service: ServiceDep,
    owner: OwnerDep,
    conversation_id: str,
    after: After | None = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> Response:
    """Lists the items, newest first unless order is asc."""
    at = None if after is None else dialect.message_of(after, "after")
    newest_first = order == "desc"
    with _named(conversation_id, after, "after") as session:
        store = await service.store()
        # every message has an item, so these are enough for a page behind the message `at`, and one item more
        found = await store.messages_from(owner, session, at, limit + 2, newest_first=newest_first)
    oldest_first = reversed(found) if newest_first else found
    return json_response(
        cut_page([i for message in oldest_first for i in dialect.items_of(message)], after, limit, order)
    )


@router.get("/{conversation_id}/items/{item_id}", response_model=ConversationItem)
async def get_item(service: ServiceDep, owner: OwnerDep, conversation_id: str, item_id: str) -> Response:
    """Returns one item."""
    item, _ = await _item(service, owner, conversation_id, item_id)
    return json_response(item)


@router.delete("/{conversation_id}/items/{item_id}", response_model=ConversationShown)
async def delete_item(
    service: ServiceDep, owner: OwnerDep, conversation_id: str, item_id: str, if_match: IfMatch = None
) -> Response:
    """Deletes an item; with a call its result, with a text its reasoning. One part of several of an answer, and a
    result alone, cannot go: 409."""
    item, others = await _item(service, owner, conversation_id, item_id)
    if item["type"] == "reasoning" or any(other["type"] != "reasoning" for other in others):
        ids = ", ".join(other["id"] for other in others)
        raise Conflict(
            f"This item is a part of one answer with {ids}, and later prompts need it whole: delete the answer with "
            f"DELETE /v1/sessions/{dialect.session_id_of(conversation_id)}/messages/{dialect.message_of(item_id)}"
        )
    with _named(conversation_id, item_id) as session:
        message, revision = dialect.message_of(item_id), revision_of(if_match)
        return _one(await (await service.store()).delete_message(owner, session, message, revision))


def _one(session: Session) -> Response:
    return json_response(dialect.shown(session), headers=etag(session.revision))


async def _item(
    service: Service, owner: str, conversation: str, item_id: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the item, and the other items of its message. Raises NotFound."""
    with _named(conversation, item_id) as session:
        store = await service.store()
        [message] = await store.messages_from(owner, session, dialect.message_of(item_id), 1)
    items = dialect.items_of(message)
    item = next((each for each in items if each["id"] == item_id), None)
    if item is None:
        raise dialect.no_item(item_id)
    return item, [each for each in items if each is not item]


@contextmanager
def _named(conversation: str, item: str | None = None, param: str = "item_id") -> Iterator[str]:
    """Gives the session of a conversation. What is not there gets the names that its client knows."""
    try:
        yield dialect.session_id_of(conversation)
    except NotFound as error:
        if error.param == "session_id":
            raise dialect.no_conversation(conversation, "conversation_id") from None
        raise dialect.no_item(item or "", param) from None


def _refuse_include(http: Request) -> None:
    """Raises UnsupportedField for `include`: a session keeps none of what it could add."""
    if any(name in ("include", "include[]") for name in http.query_params):
        raise UnsupportedField("`include` cannot act: a conversation keeps no more of an item", param="include")
