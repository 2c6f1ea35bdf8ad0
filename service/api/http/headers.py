"""Headers that change what a request means: `If-Match`, the one state that the client knows of the resource to change,
with `ETag`, which tells it; and `Idempotency-Key`, which stands for this method, path and body.

Routes that generate nothing ignore the key, so that clients may send one with every request.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Header, Request

from service.errors import InvalidRequest

IfMatch = Annotated[str | None, Header()]
"""The header as a handler takes it; `tag_of` and `revision_of` read it."""


def tag_of(if_match: str | None) -> str | None:
    """Returns the text between the quotes. Raises InvalidRequest for anything but one strong tag."""
    if if_match is None:
        return None
    if len(if_match) < 2 or if_match[0] != '"' or if_match[-1] != '"' or '"' in if_match[1:-1]:
        raise _refusal()
    return if_match[1:-1]


def revision_of(if_match: str | None) -> int | None:
    """Returns the same for a session, whose tags are numbers."""
    tag = tag_of(if_match)
    if tag is None:
        return None
    if not tag.isascii() or not tag.isdigit() or len(tag) > 18:
        raise _refusal()
    return int(tag)


def etag(revision: int) -> dict[str, str]:
    """Returns the header that tells a session's revision."""
    return {"ETag": f'"{revision}"'}


def _refusal() -> InvalidRequest:
    return InvalidRequest('If-Match must be one ETag as it was told, as in "3"', param="If-Match")


HEADER: Final = "Idempotency-Key"
_KEY: Final = re.compile(r"[!-~]{1,255}")
_SHAPING: Final = ("if-match",)
"""Headers that are a part of the request's meaning, like the body."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    owner: str
    text: str
    body_hash: str


def note_body(http: Request, raw: bytes) -> None:
    """Remembers what the key stands for while the body's bytes are at hand. Does nothing where there is no key."""
    if HEADER not in http.headers:
        return
    digest = hashlib.sha256()
    shaping = (http.headers.get(name, "").encode("latin-1") for name in _SHAPING)
    for part in (http.method.encode(), http.scope["path"].encode(), *shaping, raw):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    http.state.body_hash = digest.hexdigest()


def key_of(http: Request) -> IdempotencyKey | None:
    """Returns the key; None where the request has none. Raises InvalidRequest for a text that cannot be a key."""
    keys = http.headers.getlist(HEADER)
    if not keys:
        return None
    if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
        raise InvalidRequest(f"{HEADER} must be one key of 1 to 255 visible ASCII characters", param=HEADER)
    return IdempotencyKey(http.state.owner, keys[0], http.state.body_hash)
