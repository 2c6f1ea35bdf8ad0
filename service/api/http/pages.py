"""The pages are what a browser sees at `/`: one file each, no script, nothing from anywhere else. This module knows the
templates and their headers, not what they show."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import HTMLResponse, Response

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES: Final = Path(__file__).parent / "templates"
STYLE: Final = (TEMPLATES / "page.css").read_text(encoding="utf-8")
UI: Final = "/ui"
"""The path of the store UI."""


def style_source(style: str) -> str:
    """Returns the source of a policy that allows this inline style and no other (CSP Level 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"


HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src {style_source(STYLE)}; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Vary": "Accept",
}
HTML: Final = "text/html"


def prefers_html(accept: str) -> bool:
    """Returns whether an `Accept` header asks for a page, as browsers do: it names text/html, and JSON not before it.

    >>> prefers_html("text/html,application/xml;q=0.9,*/*;q=0.8"), prefers_html("*/*"), prefers_html("text/html;q=0")
    (True, False, False)
    """
    qualities = dict(map(_range, accept.split(",")))
    return qualities.get(HTML, 0) > 0 and qualities[HTML] >= qualities.get("application/json", 0)


def _range(text: str) -> tuple[str, float]:
    kind, *parameters = (part.strip().lower() for part in text.split(";"))
    quality = next((each.removeprefix("q=") for each in parameters if each.startswith("q=")), "1")
    try:
        return kind, float(quality)
    except ValueError:
        return kind, 0.0


def page(
    name: str, shown: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns the page `name` with `shown` in it, escaped. Raises jinja2.UndefinedError where a value is missing."""
    text = templates(TEMPLATES).get_template(f"{name}.html").render(shown, style=STYLE)
    return HTMLResponse(text, status, {**HEADERS, **(headers or {})})


@cache
def templates(folder: Path) -> Environment:
    """Returns the templates of a folder, whose values are escaped. Imports jinja2: `bentoml serve` also imports this
    module in a process that shows no page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
