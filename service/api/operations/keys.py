"""Keys of `/v1/keys`: their wire models, and the routes that make, change, rotate and delete them. A key is told once,
in the answer that makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from models.errors import InvalidReference
from models.manifest import ModelReference
from service.api.deps import ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.shared.answer_schemas import Shown, Time
from service.api.shared.schemas import Wire
from service.storage.keys import Key

Name = Annotated[str, Field(min_length=1, max_length=100)]
ScopeName = Literal["generate", "sessions", "models:read", "models:write", "metrics", "admin"]
WEEK_SECONDS: Final = 7 * 86400


def _name_or_version(value: str) -> str:
    try:
        parsed = ModelReference.parse(value)
    except InvalidReference as error:
        raise PydanticCustomError("reference", "{text}", {"text": f"is no model: {error}"}) from None
    if parsed.alias is not None:
        raise PydanticCustomError("reference", "must be a name or name:version; an alias may move: leave it out")
    return value


def _seconds(value: object) -> float:
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC).replace(microsecond=0).timestamp()
    raise PydanticCustomError("moment", "must be a time with its zone, as 2027-01-31T00:00:00+00:00")


Moment = Annotated[float, BeforeValidator(_seconds), WithJsonSchema({"type": "string", "format": "date-time"})]
Model = Annotated[str, Field(max_length=200), AfterValidator(_name_or_version)]


Count = Annotated[int, Field(ge=1, le=1 << 53)]


class LimitsBody(Wire):
    """What a key may use of all instances, and `concurrent` requests at a time of each; null is no limit. Tokens are
    those of prompts and answers, and count when an answer has ended. A day begins at 00:00 UTC. Requests are those of
    the scope `generate`."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    requests_per_day: Count | None = None
    tokens_per_day: Count | None = None
    concurrent: Count | None = None


class _Body(Wire):
    models: Annotated[list[Model], Field(min_length=1, max_length=100)] | None = None
    expires_at: Moment | None = None
    limits: LimitsBody | None = None

    def facts(self) -> dict[str, Any]:
        """Returns what the client sent, as keys have it."""
        return {name: _FACTS.get(name, _same)(getattr(self, name)) for name in self.model_fields_set}


class KeyBody(_Body):
    """A key. `scopes` say what it may do, `admin` everything. Only `models` answer it, names or `name:version`; absent,
    all do."""

    name: Name
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=6)]


class KeyChangeBody(_Body):
    """The fields to change: an absent one stays as it is, and so does an absent one of `limits`; null takes `models`,
    `expires_at`, `limits` or one of them away."""

    name: Name = ""
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=6)] = Field(default_factory=list)


class RotateBody(Wire):
    """The secret of before is good for `grace_seconds` more."""

    grace_seconds: Annotated[int, Field(ge=0, le=WEEK_SECONDS)] = 0


class LimitsShown(Shown):
    requests_per_minute: int | None
    tokens_per_minute: int | None
    requests_per_day: int | None
    tokens_per_day: int | None
    concurrent: int | None


class KeyShown(Shown):
    """A key without what lets anybody in. `id` is the owner of all that its bearers store. `key` is there in the answer
    that made it, and never again."""

    id: str
    name: str
    scopes: list[str]
    models: list[str] | None
    limits: LimitsShown | None
    expires_at: Time | None
    created_at: Time
    key: str | None = None


class KeyList(Shown):
    """Oldest first."""

    data: list[KeyShown]


router = Router(prefix="/v1/keys", tags=["keys"])
KEY: Final = json_body(KeyBody)
CHANGE: Final = json_body(KeyChangeBody)
ROTATE: Final = json_body(RotateBody)


@router.post("", response_model=KeyShown, status_code=201)
async def create_key(service: ServiceDep, body: KeyBody = KEY) -> Response:
    """Makes a key, which only this answer tells. The first key of a server that has none closes it: it needs the scope
    `admin` and no end."""
    key, plain = await asyncio.to_thread(service.keys.add, **body.facts())
    return json_response({**_shown(key), "key": plain}, 201, {"Location": f"{router.prefix}/{key.id}"})


@router.get("", response_model=KeyList)
async def list_keys(service: ServiceDep) -> Response:
    """Lists all keys, also those that have ended."""
    return json_response({"data": list(map(_shown, service.keys.all()))})


@router.get("/{id}", response_model=KeyShown)
async def get_key(service: ServiceDep, id: str) -> Response:
    """Returns one key."""
    return json_response(_shown(service.keys.get(id)))


@router.patch("/{id}", response_model=KeyShown)
async def change_key(service: ServiceDep, id: str, body: KeyChangeBody = CHANGE) -> Response:
    """Changes a key. Every server acts on it within a second."""
    return json_response(_shown(await asyncio.to_thread(service.keys.change, id, **body.facts())))


@router.post("/{id}/rotate", response_model=KeyShown)
async def rotate_key(service: ServiceDep, id: str, body: RotateBody = ROTATE) -> Response:
    """Gives a key another secret, which only this answer tells. What its bearers stored stays theirs."""
    key, plain = await asyncio.to_thread(service.keys.rotate, id, body.grace_seconds)
    return json_response({**_shown(key), "key": plain})


@router.delete("/{id}", status_code=204)
async def delete_key(service: ServiceDep, id: str) -> Response:
    """Deletes a key: every server refuses it within a second. What its bearers stored expires as it would."""
    await asyncio.to_thread(service.keys.delete, id)
    return Response(status_code=204)


def _same(value: Any) -> Any:
    return value


_FACTS: Final[Mapping[str, Any]] = {
    "scopes": frozenset,
    "models": lambda models: models and frozenset(models),
    "limits": lambda limits: limits and limits.model_dump(exclude_unset=True),
}
"""How a key has the fields of a body."""


def _shown(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "models": key.models and sorted(key.models),
        "limits": key.limits,
        "expires_at": _moment(key.expires_at),
        "created_at": _moment(key.created_at),
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
