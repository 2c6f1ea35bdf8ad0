"""The routes of the UI: a frame for each screen, files, sign-in and sign-out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from service.api.deps import OwnerDep, Service, ServiceDep
from service.api.edge.bearers import Bearers
from service.api.http.pages import UI
from service.errors import InvalidRequest, NotFound, Unauthorized, Unavailable
from service.ui import assets
from service.ui.frame import frame, sign_in_page
from service.ui.screens import MISSING, SCREENS, START, Screen

MOST_BYTES: Final = 8192
"""The longest body of the sign-in form."""
router = APIRouter(prefix=UI, include_in_schema=False)


def _shows(screen: Screen) -> Callable[[Request, Service, str], Awaitable[Response]]:
    async def show(http: Request, service: ServiceDep, owner: OwnerDep) -> Response:
        places = http.path_params
        if await asyncio.to_thread(_lacks, service, places) or await _lacks_session(service, owner, places):
            return await missing(http, service)
        places = {**http.query_params, **http.path_params}
        return frame(http, screen, places, keyed=service.is_keyed)

    return show


def _lacks(service: Service, places: Mapping[str, str]) -> bool:
    """Returns whether there is no such model, or no such version."""
    if "model" not in places:
        return False
    try:
        service.deployments.resolve(":".join(places[part] for part in ("model", "version") if part in places))
    except (NotFound, InvalidRequest):
        return True
    except Unavailable:  # it is damaged, as its page says
        return False
    return False


async def _lacks_session(service: Service, owner: str, places: Mapping[str, str]) -> bool:
    """Returns whether the owner has no such session."""
    if "session" not in places:
        return False
    try:
        await (await service.store()).get(owner, places["session"])
    except (NotFound, InvalidRequest):
        return True
    except Unavailable:  # as its page says
        return False
    return False


for _screen in SCREENS:
    router.add_api_route(_screen.path, _shows(_screen), methods=["GET"])


@router.get("")
async def enter() -> Response:
    """Leads to the first screen; the address is relative, for a proxy may have taken a prefix off."""
    return RedirectResponse(f"ui/{START}", 307)


@router.get("/")
async def start() -> Response:
    """Leads to the first screen."""
    return RedirectResponse(START, 307)


@router.get("/static/{build}/{path:path}")
async def static(build: str, path: str) -> Response:
    """Returns a script, a style, a string file or a picture."""
    return assets.asset(build, path)


@router.post("/sign-in")
async def sign_in(http: Request, service: ServiceDep) -> Response:
    """Sets the cookie for a key of the server, and leads on to the page that was asked for."""
    form = await _form(http)
    path = form.get("path", "")
    if not service.is_keyed:
        return _onward(path)
    try:
        cookie = _bearers(http).cookie_of(form.get("key", "").strip())
    except Unauthorized:  # it has ended
        cookie = None
    if cookie is None:
        if refusal := _bearers(http).wrong_keys.count(http.scope):
            raise refusal
        return sign_in_page(http, wrong=True, path=path)
    response = _onward(path)
    response.headers.append("Set-Cookie", cookie.made(secure=http.url.scheme == "https"))
    return response


@router.post("/sign-out")
async def sign_out(http: Request, service: ServiceDep) -> Response:
    """Takes the cookies away; the page that follows asks for a key."""
    response = _onward("")
    for cookie in _bearers(http).cookies(http.headers.get("cookie", "")):
        response.headers.append("Set-Cookie", cookie.ended())
    return response


@router.get("/{path:path}")
async def missing(http: Request, service: ServiceDep) -> Response:
    """Returns the page of an address that no screen has, or of what is not there."""
    return frame(http, MISSING, {}, keyed=service.is_keyed, status=404)


def _bearers(http: Request) -> Bearers:
    found: Bearers = http.app.state.bearers
    return found


def _onward(path: str) -> Response:
    """Leads to a page of the UI. The address begins with `./`, so no text in it leads to another server."""
    safe = "".join(char for char in path if char.isprintable() and char not in "\\ ")
    return RedirectResponse(f"./{safe or START}", 303)


async def _form(http: Request) -> dict[str, str]:
    """Returns the fields of a form as browsers send it. Raises InvalidRequest for a body that is too long."""
    body = b""
    async for part in http.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise InvalidRequest(f"The form is longer than {MOST_BYTES} bytes: send the key alone", param="key")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}
