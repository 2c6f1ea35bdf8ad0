"""A frame is the part of a page that is the same everywhere: head, menu, heading. Its script draws the rest from the
public API. This module renders frames and the sign-in page, and knows their headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from os.path import normpath
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.api.http.pages import UI, style_source, templates
from service.ui.assets import RULES, STATIC, build
from service.ui.language import LANGUAGES, THEMES, chosen_language, chosen_theme, filled, strings
from service.ui.screens import MENU, START, Screen

TEMPLATES: Final = Path(__file__).parent / "templates"
STYLE: Final = (TEMPLATES / "sign-in.css").read_text(encoding="utf-8")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SIGN_IN_POLICY: Final = (
    f"default-src 'none'; style-src {style_source(STYLE)}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_IMPORT: Final = re.compile(r"""^(?:import|export)\b[^'"]*?['"](\.{1,2}/[^'"]+\.js)['"]""", re.MULTILINE)
_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Vary": "Cookie, Accept-Language",
}


def frame(http: Request, screen: Screen, places: Mapping[str, str], keyed: bool, status: int = 200) -> Response:
    """Returns the frame of a screen. `places` are the parts of the address, which the heading may name; `keyed` shows
    the button that signs out."""
    language = chosen_language(http.cookies, http.headers.get("accept-language", ""))
    up, named = _up(http.url.path), build()
    heading = filled(language, f"title.{screen.name}", places)
    text = (
        templates(TEMPLATES)
        .get_template("frame.html")
        .render(
            strings=strings(language),
            language=language,
            languages=LANGUAGES,
            theme=chosen_theme(http.cookies),
            themes=THEMES,
            heading=heading,
            screen=screen,
            places=places,
            menu=MENU,
            start=START,
            up=up,
            static=f"{up}static/{named}/",
            modules=modules(screen.name),
            keyed=keyed,
        )
    )
    rules = {"Speculation-Rules": f'"{up}static/{named}/{RULES}"'}
    return HTMLResponse(text, status, {**_HEADERS, **rules, "Content-Security-Policy": POLICY})


def sign_in_page(http: Request, wrong: bool = False, path: str | None = None) -> Response:
    """Returns the page that asks for the key, with status 401. It leads on to `path`, else to the address asked for;
    `wrong` says that a key was sent and is not the server's."""
    language = chosen_language(http.cookies, http.headers.get("accept-language", ""))
    address = http.url.path.removeprefix(UI).lstrip("/") + (f"?{http.url.query}" if http.url.query else "")
    text = (
        templates(TEMPLATES)
        .get_template("sign-in.html")
        .render(
            strings=strings(language),
            language=language,
            theme=chosen_theme(http.cookies),
            style=STYLE,
            action=_up(http.url.path) + "sign-in",
            path=address if path is None else path,
            wrong=wrong,
        )
    )
    headers = {**_HEADERS, "Content-Security-Policy": SIGN_IN_POLICY, "WWW-Authenticate": "Bearer"}
    return HTMLResponse(text, 401, headers)


@cache
def modules(name: str) -> tuple[str, ...]:
    """Returns the script of a screen, the frame's own, and every script that these import, so that the browser fetches
    them at once."""
    scripts: dict[str, None] = {}
    waiting = [STATIC / "screens" / f"{name}.js", STATIC / "lib" / "frame.js"]
    while waiting:
        path = waiting.pop(0)
        shown = path.relative_to(STATIC).as_posix()
        if shown not in scripts:
            scripts[shown] = None
            text = path.read_text(encoding="utf-8")
            waiting += [Path(normpath(path.parent / imported)) for imported in imports(text)]
    return tuple(scripts)


def imports(script: str) -> list[str]:
    """Returns the relative addresses that a script imports from.

    >>> imports("import {h} from '../lib/view.js';")
    ['../lib/view.js']
    """
    return _IMPORT.findall(script)


def _up(path: str) -> str:
    """Returns the way from a page back to the UI's root, as relative addresses: a proxy may have taken a prefix off.

    >>> _up("/ui/models"), _up("/ui/models/demo/versions/2"), _up("/ui")
    ('./', '../../../', 'ui/')
    """
    inner = path.removeprefix(UI)
    return "../" * (inner.count("/") - 1) or "./" if inner else "ui/"
