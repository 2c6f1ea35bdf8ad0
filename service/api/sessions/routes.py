"""These routes serve stored chats over HTTP: create, list, read, change, fork, regenerate, export and import.

Every answer about one session has its revision as `ETag`, but a stream; a different `If-Match` gets 412. A session of
another owner gets 404, as one that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import msgspec
from fastapi import Request
from starlette.responses import Response

from service.api.answering.responses import respond
from service.api.deps import Limit, OwnerDep, Service, ServiceDep, Text
from service.api.http.bodies import json_body, read_lines
from service.api.http.documented import Router, lines, streams
from service.api.http.encoding import NDJSON, json_response
from service.api.http.headers import IfMatch, etag, revision_of
from service.api.sessions.schemas import (
    ForkBody,
    MessageBody,
    MessagePage,
    MessageShown,
    SessionBody,
    SessionPage,
    SessionShown,
)
from service.api.shared.chat_schemas import called
from service.api.tgi import dialect as native
from service.api.tgi.answer_schemas import GenerateAnswer, TokenEvent
from service.api.tgi.schemas import RegenerateBody
from service.errors import InvalidRequest
from service.storage.sessions import Page, Session, StoredMessage

PREFIX: Final = "/v1/sessions"
TOOLS: Final = ("tool_calls", "tool_call_id", "reasoning")
router = Router(prefix=PREFIX, tags=["sessions"])
SESSION: Final = json_body(SessionBody)
MESSAGE: Final = json_body(MessageBody)
FORK: Final = json_body(ForkBody)
REGENERATE: Final = json_body(RegenerateBody)


@router.post("", response_model=SessionShown, status_code=201)
async def create(service: ServiceDep, owner: OwnerDep, body: SessionBody = SESSION) -> Response:
    """Makes a session. `policy` defaults to `window`. A `model` must exist now."""
    _check_model(service, body.model)
    return _one(await (await service.store()).create(owner, body.fields()), 201)  # type: ignore[arg-type]


@router.get("", response_model=SessionPage)
async def list_sessions(
    service: ServiceDep, owner: OwnerDep, query: Text | None = None, cursor: Text | None = None, limit: Limit = 50
) -> Response:
    """Lists the caller's sessions, newest first; `query` searches title, metadata and messages."""
    page = await (await service.store()).sessions(owner, query=query, cursor=cursor, limit=limit)
    return _page(page, [_session(each) for each in page.data])


@router.get("/{session_id}", response_model=SessionShown)
async def get_session(service: ServiceDep, owner: OwnerDep, session_id: str) -> Response:
    """Returns one session without its messages."""
    return _one(await (await service.store()).get(owner, session_id))


@router.patch("/{session_id}", response_model=SessionShown)
async def patch_session(
    service: ServiceDep, owner: OwnerDep, session_id: str, body: SessionBody = SESSION, if_match: IfMatch = None
) -> Response:
    """Changes title, model, system prompt, policy, metadata or time to live."""
    _check_model(service, body.model)
    store = await service.store()
    return _one(await store.patch(owner, session_id, body.fields(), revision_of(if_match)))  # type: ignore[arg-type]


@router.delete("/{session_id}", status_code=204)
async def delete_session(
    service: ServiceDep, owner: OwnerDep, session_id: str, erase: bool = False, if_match: IfMatch = None
) -> Response:
    """Deletes a session for every reader at once; with `erase`, also every byte of it in the database before the
    response."""
    store, revision = await service.store(), revision_of(if_match)
    if erase and revision is not None:
        raise InvalidRequest("If-Match cannot act with erase: send one of them", param="If-Match")
    if erase:
        await store.erase(owner, session_id)
    else:
        await store.delete(owner, session_id, revision)
    return Response(status_code=204)


@router.get("/{session_id}/messages", response_model=MessagePage)
async def list_messages(
    service: ServiceDep, owner: OwnerDep, session_id: str, cursor: Text | None = None, limit: Limit = 50
) -> Response:
    """Lists messages, oldest first; an assistant's message has its receipt as `context`."""
    store = await service.store()
    before = await store.get(owner, session_id)  # read first: a tag may be older than the messages, never newer
    page = await store.messages(owner, session_id, cursor=cursor, limit=limit)
    return _page(page, [_message(each) for each in page.data], etag(before.revision))


@router.patch("/{session_id}/messages/{message_id}", response_model=MessageShown)
async def patch_message(
    service: ServiceDep,
    owner: OwnerDep,
    session_id: str,
    message_id: str,
    body: MessageBody = MESSAGE,
    if_match: IfMatch = None,
) -> Response:
    """Edits or pins one message. The other messages, and its receipt, stay as they are."""
    store = await service.store()
    session, changed = await store.edit_message(
        owner,
        session_id,
        message_id,
        content=body.content,
        pinned=body.pinned,
        expected_revision=revision_of(if_match),
    )
    return json_response(_message(changed), headers=etag(session.revision))


@router.delete("/{session_id}/messages/{message_id}", response_model=SessionShown)
async def delete_message(
    service: ServiceDep, owner: OwnerDep, session_id: str, message_id: str, if_match: IfMatch = None
) -> Response:
    """Deletes one message; returns the session after that."""
    return _one(await (await service.store()).delete_message(owner, session_id, message_id, revision_of(if_match)))


@router.post("/{session_id}/fork", response_model=SessionShown, status_code=201)
async def fork(
    service: ServiceDep, owner: OwnerDep, session_id: str, body: ForkBody = FORK, if_match: IfMatch = None
) -> Response:
    """Makes a new session with the messages up to `at`."""
    return _one(await (await service.store()).copies.fork(owner, session_id, body.at, revision_of(if_match)), 201)


@router.post("/{session_id}/regenerate", response_model=GenerateAnswer, responses=streams(TokenEvent))
async def regenerate(
    http: Request, service: ServiceDep, session_id: str, body: RegenerateBody = REGENERATE, if_match: IfMatch = None
) -> Response:
    """Answers the last question again; the new answer replaces the old one."""
    request = native.parse_regenerate(body, session_id, service.settings)
    return await respond(http, service, [request], native.NativeSerialiser.of(body), stream=body.stream)


@router.get("/{session_id}/export", response_class=Response, responses=lines(NDJSON))
async def export(service: ServiceDep, owner: OwnerDep, session_id: str) -> Response:
    """Returns JSON lines, the session and then its messages, which `import` takes."""
    store = await service.store()
    before = await store.get(owner, session_id)
    lines = await store.copies.export(owner, session_id)
    return Response(b"".join(line + b"\n" for line in lines), headers=etag(before.revision), media_type=NDJSON)


@router.post("/import", response_model=SessionShown, status_code=201)
async def import_session(http: Request, service: ServiceDep, owner: OwnerDep) -> Response:
    """Makes a new session of the caller from an export, under new ids. Its `model` must exist now."""
    limit = service.settings.sessions_max_import_bytes
    lines = await read_lines(http, NDJSON, limit, "DOSIRAK_SESSIONS_MAX_IMPORT_BYTES")
    _check_model(service, _model_of(lines))
    return _one(await (await service.store()).copies.import_lines(owner, lines), 201)


def _check_model(service: Service, model: str | None) -> None:
    """Raises the InvalidRequest or NotFound that the session's turns would raise."""
    if model:
        service.deployments.resolve(model)


class _Head(msgspec.Struct):
    """The fields of an export's first line that are read before the store reads the line."""

    model: str | None = None


def _model_of(lines: Sequence[bytes]) -> str | None:
    """Returns the export's model; None also where the first line is no session's: the store says what is wrong with
    it."""
    try:
        return msgspec.json.decode(next((line for line in lines if line.strip()), b"{}"), type=_Head).model
    except (msgspec.DecodeError, RecursionError):
        return None


def _one(session: Session, status: int = 200) -> Response:
    return json_response(_session(session), status, etag(session.revision))


def _page(page: Page[Any], data: list[dict[str, Any]], headers: Mapping[str, str] | None = None) -> Response:
    return json_response({"data": data, "next_cursor": page.next_cursor}, headers=headers)


def _session(session: Session) -> dict[str, Any]:
    return {key: _shown(value) for key, value in asdict(session).items() if key not in ("owner", "cut")}


def _message(message: StoredMessage) -> dict[str, Any]:
    shown = {key: _shown(value) for key, value in asdict(message).items() if key not in ("answered", *TOOLS)}
    shown |= {key: value for key in TOOLS if (value := getattr(message, key)) is not None}
    if message.tool_calls is not None:
        shown["tool_calls"] = [called(str(c["id"]), str(c["name"]), str(c["arguments"])) for c in message.tool_calls]
    return shown | (asdict(message.answered) if message.answered else {})


def _shown(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
