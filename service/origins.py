"""The origins that a setting names, checked: each as a browser writes it in its header `Origin`. Knows no HTTP."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

EVERY: Final = "*"
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,*]+")
_OWN_PORTS: Final = {"http": 80, "https": 443}


def origins_of(text: str) -> tuple[str, ...]:
    """Returns the origins of a list with commas or blanks, in their order.

    >>> origins_of("https://app.example, http://localhost:5173")
    ('https://app.example', 'http://localhost:5173')

    Raises ValueError for a text that no browser sends: such an entry would never match."""
    found = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if EVERY in found and len(found) > 1:
        raise ValueError("* is every origin: name it alone, or name the others")
    for each in found:
        if each != EVERY and not _is_origin(each):
            raise ValueError(
                f"{each[:80]!r} is no origin: write scheme, host and port as browsers do, such as https://app.example "
                "or http://localhost:5173, in small letters, without a path and without the scheme's own port"
            )
    return found


def _is_origin(text: str) -> bool:
    if not _ORIGIN.fullmatch(text) or text != text.lower():
        return False
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        return False
    return bool(parts.hostname) and not text.endswith(":") and (port is None or port != _OWN_PORTS.get(parts.scheme))
