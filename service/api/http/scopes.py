"""Scopes say what a caller may do: this module names the one that each operation needs, and refuses who has it not. It
names the operations that quotas count, too. `auth` says which scopes a caller has."""

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
_LISTS: Final = r"/v1/models(/.*)?|/api/(tags|ps|version)|/tokenizer_info|/v2(/health/.*|/models/.*)?"
"""What clients read before they generate: the models that answer the caller, and how these read text."""
_NEEDED: Final[tuple[tuple[str, str, *tuple[str, ...]], ...]] = (
    (r"GET", r"/v1/usage"),
    (r"GET", _LISTS, GENERATE, MODELS_READ),
    (r"POST", r"/api/show", GENERATE, MODELS_READ),
    (r"GET", r"/metrics", METRICS),
    (r"POST", r"/v1/sessions/[^/]+/regenerate", GENERATE),
    (r".*", r"/v1/(sessions|feedback|knowledge|conversations)(/.*)?", SESSIONS),
    (r".*", r"/v1/(profiles|keys|audit)(/.*)?", ADMIN),
    (r"GET", r"/v1/(repository|jobs|deployments|batching|live)(/.*)?", MODELS_READ),
    (r".*", r"/v1/(repository|jobs|deployments)(/.*)?", MODELS_WRITE),
    (r"POST", r"/v2/repository/index", MODELS_READ),
    (r"POST", r"/v2/repository/.*", MODELS_WRITE),
    (r"POST", r".*", GENERATE),
    (r".*", r"/v1/(files|batches|responses|chat/completions)(/.*)?", GENERATE),
    (r"GET", r".*", MODELS_READ),
)
"""Methods and paths as patterns; the first that fits names the scopes, of which one is enough. Where there is none,
each caller sees the own alone."""


_ABOUT_STORED: Final = re.compile(r"/v1/(files|(batches|responses)/[^/]+/cancel|chat/completions/[^/]+)")
"""POSTs with the scope `generate` that have nothing answered: uploads, ends, and metadata of what is stored."""


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
def scopes_of(method: str, path: str) -> tuple[str, ...] | None:
    """Returns the scopes of which a caller of a route needs one, by the route's template: none where any key will do,
    and None where none is needed."""
    if _OPEN.fullmatch(path):
        return None
    fits = (scopes for verbs, paths, *scopes in _NEEDED if re.fullmatch(verbs, method) and re.fullmatch(paths, path))
    return tuple(next(fits, [ADMIN]))


@lru_cache(maxsize=1024)
def is_counted(method: str, path: str) -> bool:
    """Returns whether quotas count a request of a route, by the route's template, and refuse it: it has something
    answered or counted now, or a batch answered later. Whoever has used a quota up can still read, end and delete."""
    return method == "POST" and scopes_of(method, path) == (GENERATE,) and not _ABOUT_STORED.fullmatch(path)


def enforced() -> Any:
    """Returns the dependency of the whole app that raises Forbidden where the caller lacks the scope of the route."""
    return Depends(_check)


async def _check(request: Request) -> None:
    path = request.scope["route"].path
    if scopes := scopes_of(request.method, path):
        require(request, *scopes)
    if request.state.limits is not None and is_counted(request.method, path):
        quotas = request.app.state.service.answers.quotas
        request.state.leave = await quotas.enter(request.state.owner, request.state.limits)
    await audit_notes.begin(request)


def require_still(request: Request) -> None:
    """Raises what the request would be refused with now: a stream without an end does not outlive its key."""
    caller: Caller = request.app.state.caller(request.scope)
    request.state.scopes = caller.scopes
    require(request, *scopes_of(request.method, request.scope["route"].path) or caller.scopes)


def require(request: Request, *scopes: str) -> None:
    """Raises Forbidden where the caller has none of the scopes."""
    if request.state.scopes.isdisjoint(scopes):
        named = " or ".join(scopes)
        raise Forbidden(f"This needs a key with the scope {named}: send another key, or have the scope added")
