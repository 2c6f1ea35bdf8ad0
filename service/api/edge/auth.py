"""Auth decides which callers may pass, and identifies them. Where there are keys, their bearers pass, and browsers with
a cookie of one; without any key, only this machine.

The two probes need no key, nor does the form that takes one, nor the metrics where they are open. The rule reads
each request, not the address that the server listens on: `--host` of `bentoml serve` and of uvicorn never reach the
settings.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.edge.bearers import Bearers
from service.api.edge.loopback import foreign_part
from service.api.http.errors import dialect_of, response_of
from service.api.http.pages import UI, page, prefers_html
from service.api.http.scopes import EVERY, Caller
from service.errors import DosirakError, Forbidden, Unauthorized

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
METRICS: Final = "/metrics"
SIGN_IN: Final = f"{UI}/sign-in"
READS: Final = frozenset({"GET", "HEAD"})
ANONYMOUS: Final = Caller("anonymous", "anonymous", EVERY)
"""The caller where no key is needed."""
API_KEY: Final = "x-api-key"
KEY_HEADERS: Final = ("authorization", API_KEY)


class Auth:
    """ASGI middleware. Every key that is none of this server's takes the same time and gets the same sentence.
    `scope["state"]` gets the caller: `owner`, `actor`, `scopes` and `models`."""

    def __init__(
        self,
        app: ASGIApp,
        bearers: Callable[[], Bearers],
        sign_in: Callable[[Request], Response] | None = None,
        origins: Collection[str] = (),
        metrics: bool = False,
    ) -> None:
        """`sign_in` makes the page that asks for a key, with status 401. Without a key, pages of `origins` are as good
        as this machine's own. With one, `metrics` lets everyone read the metrics."""
        self._app = app
        self._origins = origins
        self._bearers = bearers
        self._sign_in = sign_in
        self._without_key = {SIGN_IN, METRICS} if metrics else {SIGN_IN}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            caller = self.caller(scope)
        except DosirakError as error:
            await self._refuse(self._judged(error, scope), scope, receive, send)
        else:
            state = scope.setdefault("state", {})
            state.update(caller.state)
            try:
                await self._app(scope, receive, send)
            finally:
                state.pop("leave", _nothing)()

    def _judged(self, error: DosirakError, scope: Scope) -> DosirakError:
        """Returns the refusal; where the request has a wrong key, it is counted."""
        is_wrong_key = isinstance(error, Unauthorized) and any(map(Headers(scope=scope).get, KEY_HEADERS))
        return self._bearers().wrong_keys.count(scope) or error if is_wrong_key else error

    def caller(self, scope: Scope) -> Caller:
        """Returns the caller. Raises Unauthorized, or Forbidden where no key is set that would tell callers apart."""
        if scope["path"] in OPEN_PATHS:
            return ANONYMOUS
        bearers = self._bearers()
        if not bearers.are_needed:
            return _local(scope, self._origins)
        if scope["path"] in self._without_key:
            return ANONYMOUS
        return _by_cookie(scope, bearers) or _bearer(scope, bearers)

    async def _refuse(self, error: DosirakError, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif self._sign_in and isinstance(error, Unauthorized) and _is_page(scope):
            scope.get("state", {}).get("log", {})["code"] = error.code
            await self._sign_in(Request(scope))(scope, receive, send)
        else:
            await _refusal(error, scope)(scope, receive, send)


def _nothing() -> None:
    """Ends a request that no quota counts."""


def _local(scope: Scope, origins: Collection[str]) -> Caller:
    foreign = foreign_part(scope, origins)
    if foreign is None:
        return ANONYMOUS
    raise Forbidden(
        f"This server has no key, so it answers its own machine only, and {foreign}: set DOSIRAK_ADMIN_KEY and send it "
        "as the header Authorization: Bearer …, or ask from the same machine through 127.0.0.1"
    )


def _bearer(scope: Scope, bearers: Bearers) -> Caller:
    """Returns the bearer of a key, which comes in the header Authorization or, from Anthropic's clients, in X-Api-Key.
    A client that sends both may have the key in either."""
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key if scheme.lower() == "bearer" else ""
    found = [bearers.caller(each.strip()) for each in (bearer, headers.get(API_KEY, ""))]
    for caller in found:
        if caller is not None:
            return caller
    raise Unauthorized("Send the server's key as the header Authorization: Bearer …, or as X-Api-Key")


def _by_cookie(scope: Scope, bearers: Bearers) -> Caller | None:
    """Returns the caller where a browser that has shown a key sends this. Raises Forbidden where the browser would
    change something and does not say that a page of this server asked it to (Fetch Metadata, W3C). Browsers name the
    Origin of what they read only for another server's page, which the cookie does not help: a neighbour of one host
    name may send it along."""
    headers = Headers(scope=scope)
    if "authorization" in headers or API_KEY in headers or "cookie" not in headers:
        return None
    caller = bearers.by_cookie(headers["cookie"])
    if caller is None or headers.get("sec-fetch-site") == "same-origin":
        return caller
    if scope["type"] == "http" and scope["method"] in READS:
        return None if "origin" in headers else caller
    raise Forbidden(
        "With the cookie of the UI only the UI's own pages change things, over https or on localhost (Sec-Fetch-Site: "
        "same-origin): send the key as the header Authorization: Bearer …"
    )


def _is_page(scope: Scope) -> bool:
    """Returns whether people come here with a browser, so that a refusal is a page."""
    path: str = scope["path"]
    return path == UI or path.startswith(f"{UI}/")


def _refusal(error: DosirakError, scope: Scope) -> Response:
    """Returns the refusal; as a page where a browser opens `/` or the UI. Under `Edge` it has the request's id and is
    in the log; around another server's routes it has an id of its own."""
    state = scope.get("state", {})
    state.get("log", {})["code"] = error.code
    request_id = state.get("request_id") or uuid.uuid4().hex
    challenge = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    headers = {**challenge, "X-Request-Id": request_id}
    if (scope["path"] == "/" or _is_page(scope)) and prefers_html(Headers(scope=scope).get("accept", "")):
        return page("refused", {"sentence": error.message}, error.status, headers)
    return response_of(error, request_id, dialect_of(scope), headers)
