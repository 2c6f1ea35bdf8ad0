"""These handlers turn raised errors into responses, by the table of `errors`, also the errors that FastAPI raises."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from models.errors import RepositoryError, disk_is_full
from service.api.http.errors import dialect_of, response_of
from service.deployments.routing import as_service_error
from service.errors import DosirakError, InvalidRequest, MethodNotAllowed, NotFound, StorageFull


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
    """Answers a full disk. Any other failure of the system is a defect, for the layer above."""
    if not disk_is_full(error):
        raise error
    return await _refused(request, StorageFull("The server's disk is full: try again when the operator has made room"))


async def _validation(request: Request, error: Exception) -> Response:
    """Answers wrong path and query parameters; `bodies` reads the bodies."""
    return await _refused(request, InvalidRequest("The address has a wrong parameter; GET /docs lists the routes"))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return await _refused(request, MethodNotAllowed("This route does not take that method"))
    if error.status_code == 404:
        return await _refused(request, NotFound("There is no such route; GET /docs lists what there is"))
    return await _refused(request, InvalidRequest("The request could not be read"))
