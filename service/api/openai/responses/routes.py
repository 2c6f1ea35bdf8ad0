"""These routes are OpenAI's responses: `/v1/responses`. The server keeps them, unless `store` is false, and goes on
from them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from fastapi import Request
from pydantic import TypeAdapter
from starlette.responses import Response

from service.api.answering.callers import note_caller, prompt_tokens
from service.api.answering.responses import respond
from service.api.answering.stored_responses import AnswerStore
from service.api.deps import Limit, OwnerDep, Service, ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import Router, streams
from service.api.http.encoding import json_response
from service.api.openai.lists import After, Order, cut_page
from service.api.openai.responses.answer_schemas import (
    DeletedResponse,
    InputTokens,
    ListedItems,
    ResponseEvent,
    ResponseShown,
)
from service.api.openai.responses.conversations import items_of, no_conversation, turn_of
from service.api.openai.responses.item_schemas import Item, ReferenceItem
from service.api.openai.responses.items import listed, messages_of, response_of
from service.api.openai.responses.parsing import parse, parse_input
from service.api.openai.responses.schemas import InputFields, InputTokensBody, ResponseBody
from service.api.openai.responses.serialiser import ResponseSerialiser
from service.api.openai.routes import note_fields
from service.api.shared.schemas import MAX_MESSAGES
from service.errors import InvalidRequest, NotFound
from service.generation.answer import Answer
from service.generation.request import SessionTurn
from service.generation.stored_turns import new_messages
from service.storage.sessions import StoredAnswer
from service.text.messages import Message

router = Router(prefix="/v1/responses", tags=["responses"])
BODY: Final = json_body(ResponseBody)
INPUT: Final = json_body(InputTokensBody)
ITEMS: Final = TypeAdapter(list[Item])
"""Items that are stored. MAX_MESSAGES bounds what one request brings."""
MOST_BEFORE: Final = 4 * MAX_MESSAGES
"""The most items that a response goes on from; a prompt of more takes too long to trim."""
KIND: Final = "response"


@router.post("", response_model=ResponseShown, responses=streams(ResponseEvent))
async def create_response(http: Request, service: ServiceDep, owner: OwnerDep, body: ResponseBody = BODY) -> Response:
    """OpenAI's responses: a whole one, or its typed events. It is stored before its end is sent."""
    note_caller(http, body.request_id, body.user or body.safety_identifier)
    note_fields(http, body.metadata, body.prompt_cache_key)
    body = body.model_copy(update={"input": await _items(service, owner, body)})
    turn = await _turn(service, owner, body)
    request = parse(body, await _before(service, owner, body.previous_response_id), turn)
    serialiser = ResponseSerialiser(body, request, body.model or service.settings.default_model)
    store = None
    if body.is_stored:
        stored = (await service.answers.conversations.store_for_writing()).answers
        store = AnswerStore(stored, owner, partial(_row, body, serialiser))
    return await respond(http, service, [request], serialiser, stream=bool(body.stream), store=store)


@router.post("/input_tokens", response_model=InputTokens)
async def input_tokens(http: Request, service: ServiceDep, owner: OwnerDep, body: InputTokensBody = INPUT) -> Response:
    """Counts the tokens that the same response would have as its input, past the window too."""
    body = body.model_copy(update={"input": await _items(service, owner, body)})
    before = await _before(service, owner, body.previous_response_id)
    count = await prompt_tokens(http, service, parse_input(body, before, await _turn(service, owner, body)))
    return json_response({"object": "response.input_tokens", "input_tokens": count})


@router.get("/{response_id}", response_model=ResponseShown)
async def get_response(service: ServiceDep, owner: OwnerDep, response_id: str, stream: bool = False) -> Response:
    """Returns a stored response."""
    if stream:
        raise InvalidRequest("A stored response is not streamed again: leave `stream` out", param="stream")
    return json_response((await (await service.store()).answers.get(owner, KIND, response_id)).body)


@router.delete("/{response_id}", response_model=DeletedResponse)
async def delete_response(service: ServiceDep, owner: OwnerDep, response_id: str) -> Response:
    """Deletes a stored response. Responses that went on from it stay, but nothing goes on from them."""
    await (await service.store()).answers.delete(owner, KIND, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel", response_model=ResponseShown)
async def cancel_response(service: ServiceDep, owner: OwnerDep, response_id: str) -> Response:
    """Refuses: only responses in the background can be cancelled, and there are none. A stream ends when its client
    leaves."""
    await (await service.store()).answers.get(owner, KIND, response_id)
    raise InvalidRequest(
        "The response is complete: close a stream's connection to cancel it while it runs", param="response_id"
    )


@router.get("/{response_id}/input_items", response_model=ListedItems)
async def input_items(
    service: ServiceDep,
    owner: OwnerDep,
    response_id: str,
    after: After | None = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> Response:
    """Lists the items that the response's own request brought, newest first unless `order` is asc."""
    items = (await (await service.store()).answers.get(owner, KIND, response_id)).asked
    return json_response(cut_page(items, after, limit, order))


async def _turn(service: Service, owner: str, body: InputFields) -> SessionTurn | None:
    """Returns the turn in the response's conversation, if it has one. Raises NotFound."""
    turn = turn_of(body)
    if turn is not None and body.conversation is not None:
        try:
            await (await service.store()).get(owner, turn.session)
        except NotFound:
            raise no_conversation(body.conversation.id, "conversation") from None
    return turn


async def _items(service: Service, owner: str, body: InputFields) -> list[Item] | None:
    """Returns the input's items with those in place of references that these name. Raises NotFound for a reference to
    no item of a stored response."""
    items, responses = list[Item](), dict[str, StoredAnswer]()
    for at, item in enumerate(body.input or ()):
        if not isinstance(item, ReferenceItem):
            items.append(item)
            continue
        try:
            name = response_of(item.id) or item.id
            if name not in responses:
                responses[name] = await (await service.store()).answers.get(owner, KIND, name)
            response = responses[name]
            named = next((each for each in _all_items(response) if each["id"] == item.id), None)
            items += ITEMS.validate_python([named] if named else [])
        except NotFound:
            named = None
        if named is None:
            raise NotFound(
                f"`input[{at}].id` names no item of a stored response: {item.id[:80]!r} was not stored, "
                "or was deleted: send the item itself",
                param=f"input[{at}].id",
            )
    return None if body.input is None else items


def _all_items(response: StoredAnswer) -> list[dict[str, Any]]:
    """Returns what a response's request brought, and its output."""
    return [*response.asked, *response.body["output"]]


async def _before(service: Service, owner: str, previous: str | None) -> tuple[Message, ...]:
    """Returns the messages of a response and of those before it, oldest first. The context management trims them.
    Raises NotFound, InvalidRequest."""
    if previous is None:
        return ()
    try:
        thread = await (await service.store()).answers.thread(owner, KIND, previous)
    except NotFound as error:
        raise NotFound(error.message, param="previous_response_id") from None
    if any(each.body.get("conversation") for each in thread):
        raise InvalidRequest(
            "`previous_response_id` names a response of a conversation, which has what was before it: send "
            "`conversation` in its place",
            param="previous_response_id",
        )
    items = [item for each in thread for item in _all_items(each)]
    if len(items) > MOST_BEFORE:
        raise InvalidRequest(
            f"`previous_response_id` goes on from {len(items)} items; at most {MOST_BEFORE} are possible: send the "
            "newest of them as `input` in its place",
            param="previous_response_id",
        )
    return await asyncio.to_thread(lambda: messages_of(ITEMS.validate_python(items)))


def _row(body: ResponseBody, serialiser: ResponseSerialiser, answer: Answer) -> StoredAnswer:
    """Returns a response without the inspection that the request may want, which no store gets."""
    response = {**serialiser.response(answer), "context": answer.receipt.to_dict()}
    id, model = answer.request.id, answer.manifest.reference
    turn = answer.request.turn
    items = listed(body.input or (), id) if turn is None else [i for each in new_messages(turn) for i in items_of(each)]
    return StoredAnswer(id, KIND, model, body.metadata or {}, items, response, body.previous_response_id)
