"""This module reads request bodies: bounded, strict JSON becomes a wire model, and everything else is refused with a
sentence.

It checks Content-Type and Content-Encoding first, then the size (declared, then real), then the JSON: no NaN or
infinity, no lone surrogate, no key twice, no nesting past 32, no integer past 64 bits. `fields` decides on the fields.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from service.api.http.audit_notes import note_fields
from service.api.http.fields import model_of
from service.api.http.headers import note_body
from service.errors import InvalidRequest, TooLarge, UnsupportedMediaType

M = TypeVar("M", bound=BaseModel)
MAX_DEPTH: Final = 32
MAX_KEYS: Final = 2048
INT64: Final = range(-(2**63), 2**63)
CONTAINERS: Final = (dict, list)
SURROGATE: Final = re.compile("[\ud800-\udfff]")
ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
LONG_INTEGER: Final = b"0" * 19

Json = dict[str, Any]


def json_body(model: type[M], any_type: bool = False) -> Any:
    """Returns a FastAPI dependency that reads the body as `model`; an empty body as `{}` where that is a whole body.
    With `any_type` it reads JSON under any Content-Type, or none: some clients name a wrong one. `documented` finds the
    model on the dependency."""
    may_be_empty = is_optional(model)

    async def read(request: Request) -> M:
        parsed = model_of(request, model, await read_object(request, may_be_empty, any_type))
        note_fields(request, parsed)
        return parsed

    read.__name__ = f"read_{model.__name__}"
    read.model = model  # type: ignore[attr-defined]
    return Depends(read)


def is_optional(model: type[BaseModel]) -> bool:
    """Returns whether no field is required: `{}` is a whole body."""
    try:
        model.model_validate({})
    except ValidationError:
        return False
    return True


async def read_object(request: Request, may_be_empty: bool = False, any_type: bool = False) -> Json:
    """Returns the body as a JSON object. Raises UnsupportedMediaType, TooLarge or InvalidRequest."""
    if not (any_type or (may_be_empty and _declares_no_body(request))):
        _check_type(request)
    raw = await read_bytes(request)
    return {} if may_be_empty and not raw else object_of(raw)


async def read_bytes(request: Request) -> bytes:
    """Returns the body, whatever its Content-Type. Raises UnsupportedMediaType for a compressed one, and TooLarge."""
    if not _declares_no_body(request):
        _check_encoding(request)
    raw = await _read_bounded(request, request.app.state.service.settings.max_body_bytes)
    note_body(request, raw)
    return raw


def object_of(raw: bytes) -> Json:
    """Returns the JSON object. Raises InvalidRequest for anything else."""
    value = parse(raw)
    if not isinstance(value, dict):
        raise InvalidRequest('The body must be a JSON object, for example {"inputs": "…"}')
    return value


async def read_lines(request: Request, kind: str, limit: int, setting: str) -> list[bytes]:
    """Returns the lines of a body of that media type and at most `limit` bytes, without their line ends; `setting` is
    the setting that raises the limit. Raises UnsupportedMediaType or TooLarge."""
    _check_type(request, kind)
    return (await _read_bounded(request, limit, setting)).splitlines()


def _declares_no_body(request: Request) -> bool:
    """Returns whether no bytes will come. Then their type does not matter: clients send any type, or none, with an
    empty body."""
    return request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers


def _check_type(request: Request, content_type: str = "application/json") -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != content_type or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMediaType(f"Send the body as UTF-8 JSON with the header Content-Type: {content_type}")
    _check_encoding(request)


def _check_encoding(request: Request) -> None:
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("Compressed bodies are not read: send the JSON without Content-Encoding")


async def _read_bounded(request: Request, limit: int, setting: str = "DOSIRAK_MAX_BODY_BYTES") -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        _refuse_size(limit, setting)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            _refuse_size(limit, setting)
        chunks.append(chunk)
    return b"".join(chunks)


def _refuse_size(limit: int, setting: str) -> NoReturn:
    raise TooLarge(f"The body is larger than {limit} bytes: send less, or set {setting} higher", max_body_bytes=limit)


def parse(raw: bytes) -> object:
    """Returns the value of strict JSON. Raises InvalidRequest saying what is wrong with it."""
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
        )
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not UTF-8: encode it as UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        if not raw.strip():
            raise InvalidRequest("The body is empty: send a JSON object") from None
        raise InvalidRequest(f"The body is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError:  # Python limits the digits of an integer
        raise _too_large() from None
    _check_values(value, check_leaves=_is_suspicious(raw))
    return value


def _is_suspicious(raw: bytes) -> bool:
    """Returns whether the body may hold half of a surrogate pair, or an integer that does not fit. A search for 19
    digits starts again at every byte; with all digits replaced by one it is a search for one word, twenty times as
    fast."""
    return ESCAPED_SURROGATE.search(raw) is not None or LONG_INTEGER in raw.translate(ZEROS)


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    if len(pairs) > MAX_KEYS:
        raise InvalidRequest(f"An object in the body has more than {MAX_KEYS} keys: send fewer", max_keys=MAX_KEYS)
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(names) if key in names[:place])
        raise InvalidRequest(f"{_shown(twice)} is there twice in one object: send every key once")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is not a JSON number: send a finite one")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequest("A number in the body is larger than a double can hold: send a finite one")
    return value


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"The body is nested more than {MAX_DEPTH} deep: flatten it", max_depth=MAX_DEPTH)


def _too_large() -> InvalidRequest:
    return InvalidRequest("A number in the body does not fit 64 bits: send a smaller one")


def _check_values(value: object, check_leaves: bool) -> None:
    """Checks depth level by level, so that no input can exhaust the stack. Checks texts and integers only where the raw
    body gives reason to: a body of a million tokens must not hold the event loop."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
                if check_leaves:
                    below.extend(each)
            elif isinstance(each, list):
                below.extend(each)
        if check_leaves:
            _check_leaves(below)
        level = [each for each in below if type(each) in CONTAINERS]
        if not level:
            return
    raise _too_deep()


def _check_leaves(values: list[object]) -> None:
    for value in values:
        if isinstance(value, str) and SURROGATE.search(value):
            raise InvalidRequest("A string holds half of a surrogate pair (\\ud800 … \\udfff): send whole characters")
        if isinstance(value, int) and value not in INT64:
            raise _too_large()


def _shown(key: str) -> str:
    return json.dumps(key[:80])
