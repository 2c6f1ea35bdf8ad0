"""The `Idempotency-Key` of a request: what may be one, and what it stands for: this method, path and body.

Routes that generate nothing never look at it, so that clients may send one with everything.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from service.errors import InvalidRequest

HEADER: Final = "Idempotency-Key"
_KEY: Final = re.compile(r"[!-~]{1,255}")
_SHAPING: Final = ("if-match",)
"""Headers that belong to what is asked, as the body does."""


@dataclass(frozen=True, slots=True)
class Key:
    owner: str
    text: str
    body_hash: str


def note_body(request: Request, raw: bytes) -> None:
    """Remember what a key stands for while the body's bytes are at hand. Nothing to do where there is no key."""
    if HEADER not in request.headers:
        return
    digest = hashlib.sha256()
    shaping = (request.headers.get(name, "").encode("latin-1") for name in _SHAPING)
    for part in (request.method.encode(), request.scope["path"].encode(), *shaping, raw):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    request.state.body_hash = digest.hexdigest()


def key_of(request: Request) -> Key | None:
    """None where the request has none. Raises InvalidRequest for what cannot be one."""
    given = request.headers.getlist(HEADER)
    if not given:
        return None
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        raise InvalidRequest(f"{HEADER} must be one key of 1 to 255 visible ASCII characters", param=HEADER)
    return Key(request.state.owner, given[0], request.state.body_hash)
