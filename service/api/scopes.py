"""Scopes say what a caller may do. A route names the scope that it needs; `auth` says which scopes a caller has."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Depends, Request

from service.errors import Forbidden

ADMIN: Final = "admin"
GENERATE: Final = "generate"
SESSIONS: Final = "sessions"
MODELS_READ: Final = "models:read"
MODELS_WRITE: Final = "models:write"
EVERY: Final = frozenset({GENERATE, SESSIONS, MODELS_READ, MODELS_WRITE, "metrics", ADMIN})


def needs(scope: str) -> Any:
    """Returns the dependency of a route that only callers with `scope` may use. It raises Forbidden for others."""

    def check(request: Request) -> None:
        if scope not in request.state.scopes:
            raise Forbidden(f"This needs a key with the scope {scope}: send another key, or have the scope added")

    return Depends(check)
