"""Auth decides which callers may pass, and identifies them. With an admin key set, the key's bearers pass; without one,
only this machine.

The two probes need no key. The rule reads each request, not the address that the server listens on: `--host` of
`bentoml serve` and of uvicorn never reach the settings.
"""

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
from service.api.loopback import foreign_part
from service.api.pages import page, prefers_html
from service.errors import DosirakError, Forbidden, Unauthorized

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
ANONYMOUS: Final = "anonymous"
"""The caller where no key is needed."""
_KEY: Final = "key:"
_SHORT: Final = len(_KEY) + 8


class Auth:
    """ASGI middleware. The comparison takes the same time for every key, and every refused key gets the same sentence.
    `scope["state"]` gets the caller as `owner`: `anonymous`, or `key:` and the key's sha256 in hex; and as `actor`: the
    same with 8 digits, for people to read."""

    def __init__(self, app: ASGIApp, admin_key: str | None) -> None:
        self._app = app
        self._expected = None if admin_key is None else _digest(admin_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            actor = self._actor(scope)
        except DosirakError as error:
            await _refuse(error, scope, receive, send)
        else:
            scope.setdefault("state", {}).update(actor=actor[:_SHORT], owner=actor)
            await self._app(scope, receive, send)

    def _actor(self, scope: Scope) -> str:
        """Returns the caller. Raises Unauthorized, or Forbidden where no key is set that would tell callers apart."""
        if scope["path"] in OPEN_PATHS:
            return ANONYMOUS
        return _local(scope) if self._expected is None else _bearer(scope, self._expected)


def _local(scope: Scope) -> str:
    foreign = foreign_part(scope)
    if foreign is None:
        return ANONYMOUS
    raise Forbidden(
        f"This server has no key, so it answers its own machine only, and {foreign}: set DOSIRAK_ADMIN_KEY and send it "
        "as the header Authorization: Bearer …, or ask from the same machine through 127.0.0.1"
    )


def _bearer(scope: Scope, expected: bytes) -> str:
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    sent = _digest(key.strip())
    if hmac.compare_digest(sent, expected) and scheme.lower() == "bearer":
        return f"{_KEY}{sent.hex()}"
    raise Unauthorized("Send the server's key as the header Authorization: Bearer …")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


async def _refuse(error: DosirakError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await _refusal(error, scope)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})


def _refusal(error: DosirakError, scope: Scope) -> Response:
    """Returns the refusal; as a page where a browser opens `/`. Under `Edge` it has the request's id and is in the log;
    around another server's routes it has an id of its own."""
    state = scope.get("state", {})
    state.get("log", {})["code"] = error.code
    request_id = state.get("request_id") or uuid.uuid4().hex
    challenge = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    told = {**challenge, "X-Request-Id": request_id}
    if scope["path"] == "/" and prefers_html(Headers(scope=scope).get("accept", "")):
        return page("refused", {"sentence": error.message}, error.status, told)
    return response_of(error, request_id, is_openai(scope["path"]), told)
