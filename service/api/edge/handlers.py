"""Raised errors become responses, by the table of `errors`; so do paths that no route has, and wrong methods."""

from __future__ import annotations

import errno
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from models.errors import RepositoryError, disk_is_full, disk_is_unusable
from service.api.edge.layer import CATCH_ALL
from service.api.http.errors import dialect_of, refusal_about, response_of
from service.deployments.routing import as_service_error
from service.errors import DosirakError, InvalidRequest, MethodNotAllowed, NotFound, StorageFull, Unavailable
from service.storage.outages import DATA

RETRY_SECONDS: Final = 5.0


def install(app: FastAPI) -> None:
    for kind, handler in (
        (DosirakError, _refused),
        (RepositoryError, _repository),
        (RequestValidationError, _validation),
        (HTTPException, _http),
        (OSError, _disk),
    ):
        app.add_exception_handler(kind, handler)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, DosirakError)
    request.state.log["code"] = error.code
    allow = getattr(request.state, "allow", None)
    headers = {"Allow": allow} if allow and isinstance(error, MethodNotAllowed) else None
    return response_of(error, request.state.request_id, dialect_of(request.scope), headers)


async def _repository(request: Request, error: Exception) -> Response:
    assert isinstance(error, RepositoryError)
    return await _refused(request, as_service_error(error))


async def _disk(request: Request, error: Exception) -> Response:
    """Answers a full disk, or one that cannot be used. Any other failure of the system is a defect, for the layer
    above."""
    assert isinstance(error, OSError)
    if disk_is_full(error):
        known: DosirakError = StorageFull("The server's disk is full: try again when the operator has made room")
    elif disk_is_unusable(error):
        known = Unavailable(
            f"The server's files cannot be used now ({error.strerror}): try again later", retry_after=RETRY_SECONDS
        )
    else:
        raise error
    outages = request.app.state.service.outages[DATA]
    name = errno.errorcode.get(error.errno or 0, "")
    outages.began(DATA, known.message, f"{name}: {error.strerror}", name)
    return await _refused(request, known)


async def _validation(request: Request, error: Exception) -> Response:
    """Answers wrong path and query parameters, by name; `bodies` reads the bodies."""
    assert isinstance(error, RequestValidationError)
    detail = error.errors()[0]
    detail["loc"] = detail["loc"][1:]  # without "query" or "path"
    return await _refused(request, refusal_about(detail))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return await _refused(request, MethodNotAllowed("This route does not take that method"))
    if error.status_code == 404:
        return await _refused(request, NotFound("There is no such route; GET /docs lists what there is"))
    return await _refused(request, InvalidRequest("The request could not be read"))


METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")


class Unknown:
    """This ASGI endpoint answers every method. Raises NotFound or MethodNotAllowed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = _methods(scope, Request(scope).app.routes)
        if not allowed:
            raise NotFound("There is no such route; GET /docs lists what there is")
        scope["state"]["allow"] = ", ".join(allowed)
        raise MethodNotAllowed(f"This route takes {' or '.join(allowed)}, not {scope['method'][:16]}")


def _methods(scope: Scope, routes: list[BaseRoute]) -> list[str]:
    """Returns the methods that other routes take for this path."""
    others = [route for route in routes if getattr(route, "path", None) != CATCH_ALL]
    taken = [method for method in METHODS if any(_takes(route, {**scope, "method": method}) for route in others)]
    return [*taken, *(["HEAD"] if "GET" in taken else [])]  # see `edge`


def _takes(route: BaseRoute, scope: Scope) -> bool:
    return route.matches(scope)[0] is Match.FULL


def unknown_route() -> Route:
    return Route(CATCH_ALL, endpoint=Unknown())
