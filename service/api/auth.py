"""Who may pass, and who that is: with an admin key set, only the two probes answer without it."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.dialects import is_openai
from service.api.errors import response_of
from service.errors import Unauthorized

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
ANONYMOUS: Final = "anonymous"
"""Who asks where no key is needed."""
_KEY: Final = "key:"
_SHORT: Final = len(_KEY) + 8


class Auth:
    """ASGI middleware. The comparison takes the same time for every key, and every refusal is the same sentence.
    `scope["state"]` gets `owner`, who asks: `anonymous`, or `key:` and the key's sha256 in hex, and `actor`, the same
    with 8 digits, for people to read."""

    def __init__(self, app: ASGIApp, admin_key: str | None) -> None:
        self._app = app
        self._expected = None if admin_key is None else _digest(admin_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif actor := self._actor(scope):
            scope.setdefault("state", {}).update(actor=actor[:_SHORT], owner=actor)
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refusal(scope)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _actor(self, scope: Scope) -> str | None:
        """Who asks; None for who may not pass."""
        if self._expected is None or scope["path"] in OPEN_PATHS:
            return ANONYMOUS
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        sent = _digest(key.strip())
        matches = hmac.compare_digest(sent, self._expected)
        return f"{_KEY}{sent.hex()}" if matches and scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _refusal(scope: Scope) -> Response:
    """Under `Edge` with its request id and in its log; around another server's routes with an id of its own."""
    error = Unauthorized("Send the server's key as the header Authorization: Bearer …")
    state = scope.get("state", {})
    state.get("log", {})["code"] = error.code
    request_id = state.get("request_id") or uuid.uuid4().hex
    headers = {"WWW-Authenticate": "Bearer", "X-Request-Id": request_id}
    return response_of(error, request_id, is_openai(scope["path"]), headers)
