"""Cross-origin resource sharing: pages of the origins that a setting names may ask this server and read its answers.

It is the outermost layer, so that refusals and failures can be read, too, and a preflight, which has no key, passes by
the check of keys. Browsers never send cookies along: a page shows the key itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
EXPOSED: Final = (
    "Allow",
    "ETag",
    "Idempotent-Replayed",
    "Request-Id",
    "Retry-After",
    "WWW-Authenticate",
    "X-Context-Dropped-Tokens",
    "X-Context-Truncated",
    "X-Ignored-Fields",
    "X-Instance",
    "X-Model-Version",
    "X-Request-Id",
)
"""Headers of responses that a page may read beside those that it always may."""
_SEEN: Final = "dosirak.cors"


class Cors(CORSMiddleware):
    """ASGI middleware. Around another server's routes and around the app inside of it, only the outer one acts."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        """`origins` are exact, or `*` alone. Their pages may also ask a server of a private network."""
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=("*",),
            expose_headers=EXPOSED,
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _SEEN in scope:
            await self.app(scope, receive, send)
        else:
            await super().__call__({**scope, _SEEN: True}, receive, send)
