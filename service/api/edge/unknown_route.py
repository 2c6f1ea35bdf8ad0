"""This route answers every path that no other route has, and every wrong method, as JSON in the path's dialect. It is
the last route of the app."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from service.api.edge.layer import CATCH_ALL
from service.errors import MethodNotAllowed, NotFound

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
