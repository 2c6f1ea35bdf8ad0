"""This module reads a request's `Idempotency-Key`, and what it stands for: this method, path and body.

Routes that generate nothing ignore the key, so that clients may send one with every request.
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
    given = http.headers.getlist(HEADER)
    if not given:
        return None
    if len(given) > 1 or not _KEY.fullmatch(given[0]):
        raise InvalidRequest(f"{HEADER} must be one key of 1 to 255 visible ASCII characters", param=HEADER)
    return IdempotencyKey(http.state.owner, given[0], http.state.body_hash)
