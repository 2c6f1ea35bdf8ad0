"""These routes are OpenAI's `/v1/files`: what batches read, and what they have made."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any, BinaryIO, Final

from fastapi import Query, Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from service.api.deps import OwnerDep, ServiceDep, Text
from service.api.http.documented import Router, lines
from service.api.http.encoding import NDJSON, json_response
from service.api.http.fields import model_of
from service.api.openai.files.schemas import FileDeleted, FileFields, FilePage, FileShown
from service.api.openai.files.uploads import declared_bytes, read_form
from service.api.openai.lists import Order, page_of
from service.errors import InvalidRequest, Unavailable
from service.storage.files.files import BATCH, DEFAULT_SECONDS, OUTPUT
from service.storage.sessions import StoredFile

router = Router(prefix="/v1/files", tags=["files"])
FileLimit = Annotated[int, Query(ge=1, le=10000)]
FORM: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                        "purpose": {"const": "batch"},
                        "expires_after[anchor]": {"const": "created_at"},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
                    },
                }
            }
        },
    }
}
_PLAIN: Final = {"text/plain": {"schema": {"type": "string"}}}
PARTS: Final[dict[int | str, dict[str, Any]]] = {
    206: {
        "description": "The part that `Range` names; several parts as multipart.",
        "content": {each: {"schema": {"type": "string"}} for each in (NDJSON, "multipart/byteranges")},
    },
    400: {"description": "`Range` is no range.", "content": _PLAIN},
    416: {"description": "The file is shorter than `Range` says; see Content-Range.", "content": _PLAIN},
}


@router.post("", response_model=FileShown, openapi_extra=FORM)
async def upload(http: Request, service: ServiceDep, owner: OwnerDep) -> Response:
    """Keeps a file for a batch; `expires_after` says for how long, 30 days where it is absent."""
    declared = declared_bytes(http)
    service.files.check_declared(declared)
    async with service.files.receiving(declared) as receiving:
        form = await read_form(http, service.files, receiving)
        fields = model_of(http, FileFields, _nested(form.fields))
        seconds = fields.expires_after.seconds if fields.expires_after else DEFAULT_SECONDS
        return json_response(_shown(await receiving.keep(owner, form.filename, fields.purpose, seconds)))


@router.get("", response_model=FilePage)
async def list_files(
    service: ServiceDep,
    owner: OwnerDep,
    purpose: Text | None = None,
    limit: FileLimit = 10000,
    order: Order = "desc",
    after: Text | None = None,
) -> Response:
    """Lists the caller's files, newest first."""
    if purpose not in (None, BATCH, OUTPUT):
        return json_response(page_of([], has_more=False))
    found, has_more = await service.files.all(owner, purpose, after, limit, newest_first=order == "desc")
    return json_response(page_of([_shown(each) for each in found], has_more=has_more))


@router.get("/{file_id}", response_model=FileShown)
async def get_file(service: ServiceDep, owner: OwnerDep, file_id: str) -> Response:
    """Returns what is known of a file, without its content."""
    return json_response(_shown(await service.files.get(owner, file_id)))


@router.get("/{file_id}/content", response_class=Response, responses={**lines(NDJSON), **PARTS})
async def get_content(service: ServiceDep, owner: OwnerDep, file_id: str) -> Response:
    """Returns the bytes of a file; with the header `Range` a part of them, so that a download can go on."""
    try:
        file, path = await service.files.path(owner, file_id)
        content = await asyncio.to_thread(path.open, "rb")
    except (FileNotFoundError, Unavailable):
        await service.files.get(owner, file_id)  # a file that was deleted meanwhile is not there
        raise
    return _OpenFile(content, file.filename)


@router.delete("/{file_id}", response_model=FileDeleted)
async def delete_file(service: ServiceDep, owner: OwnerDep, file_id: str) -> Response:
    """Deletes a file that no batch reads."""
    await service.files.delete(owner, file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


class _OpenFile(FileResponse):
    """Sends an open file, whole also where it is deleted meanwhile, and closes it."""

    def __init__(self, content: BinaryIO, name: str) -> None:
        place = content.fileno()
        super().__init__(f"/dev/fd/{place}", media_type=NDJSON, filename=name, stat_result=os.fstat(place))
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._content:
            await super().__call__(scope, receive, send)


def _nested(fields: dict[str, str]) -> dict[str, Any]:
    """Returns the fields of a form as an object: `expires_after[seconds]` is a field of `expires_after`."""
    nested: dict[str, Any] = {}
    for name, value in fields.items():
        outer, _, inner = name.partition("[")
        if inner.endswith("]") and outer == "expires_after":
            within = nested.setdefault(outer, {})
            if not isinstance(within, dict):
                raise InvalidRequest(f"`{outer}` is given twice: leave it out beside `{name}`", param=outer)
            within[inner[:-1]] = int(value) if value.isdecimal() and len(value) < 20 else value
        else:
            nested[name] = value
    return nested


def _shown(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": None if file.expires_at is None else int(file.expires_at.timestamp()),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
