"""Scopes say what a caller may do: this module names the one that each operation needs, and refuses who has it not.
`auth` says which scopes a caller has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from fastapi import Depends, Request

from service.api.http import audit_notes
from service.errors import Forbidden

ADMIN: Final = "admin"
GENERATE: Final = "generate"
METRICS: Final = "metrics"
SESSIONS: Final = "sessions"
MODELS_READ: Final = "models:read"
MODELS_WRITE: Final = "models:write"
EVERY: Final = frozenset({GENERATE, SESSIONS, MODELS_READ, MODELS_WRITE, METRICS, ADMIN})
_OPEN: Final = re.compile(r"/(livez|readyz|ui(/.*)?)")
"""Probes, and pages that have nothing of their own: their scripts ask for what they show."""
_NEEDED: Final[tuple[tuple[str, str, str], ...]] = (
    (r"GET", r"/metrics", METRICS),
    (r".*", r"/v1/(sessions|feedback|knowledge|conversations)(/.*)?", SESSIONS),
    (r".*", r"/v1/(profiles|keys|audit)(/.*)?", ADMIN),
    (r"GET", r"/v1/(repository|jobs|deployments|models|batching|live)(/.*)?", MODELS_READ),
    (r".*", r"/v1/(repository|jobs|deployments)(/.*)?", MODELS_WRITE),
    (r"POST", r"/v2/repository/index", MODELS_READ),
    (r"POST", r"/v2/repository/.*", MODELS_WRITE),
    (r"POST", r"/api/show", MODELS_READ),
    (r"POST", r".*", GENERATE),
    (r".*", r"/v1/(files|batches|responses|chat/completions)(/.*)?", GENERATE),
    (r"GET", r".*", MODELS_READ),
)
"""Methods and paths as patterns; the first that fits names the scope."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. `owner` is whose all is that the request stores, `actor` the same for people to read;
    `models` are the models that may answer, as names or `name:version`; None allows all."""

    owner: str
    actor: str
    scopes: frozenset[str]
    models: frozenset[str] | None = None
    limits: object = None
    """The key's, for `enter`; None for none."""

    @property
    def state(self) -> dict[str, object]:
        """Returns what the request's state has of its caller."""
        return {
            "owner": self.owner,
            "actor": self.actor,
            "scopes": self.scopes,
            "models": self.models,
            "limits": self.limits,
        }


@lru_cache(maxsize=1024)
def scope_of(method: str, path: str) -> str | None:
    """Returns the scope that a caller of a route needs, by the route's template; None where every caller may pass."""
    if _OPEN.fullmatch(path):
        return None
    fits = (scope for verbs, paths, scope in _NEEDED if re.fullmatch(verbs, method) and re.fullmatch(paths, path))
    return next(fits, ADMIN)


def enforced() -> Any:
    """Returns the dependency of the whole app that raises Forbidden where the caller lacks the scope of the route."""
    return Depends(_check)


async def _check(request: Request) -> None:
    scope = scope_of(request.method, request.scope["route"].path)
    if scope is not None:
        require(request, scope)
    if scope == GENERATE and request.state.limits is not None:
        quotas = request.app.state.service.answers.quotas
        request.state.leave = quotas.enter(request.state.owner, request.state.limits)
    await audit_notes.begin(request)


def require(request: Request, scope: str) -> None:
    """Raises Forbidden where the caller lacks the scope."""
    if scope not in request.state.scopes:
        raise Forbidden(f"This needs a key with the scope {scope}: send another key, or have the scope added")
