"""A cursor says where a list continues: an opaque text that callers pass back. This module knows no list.

A cursor holds a position only: a forged cursor shows another part of the caller's own list.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from service.errors import InvalidRequest


def encode(kind: str, position: int | str, id: str) -> str:
    """Returns the cursor behind an entry of a list of this kind. `position` is what the list is sorted by, and `id`
    tells entries at one position apart."""
    return base64.urlsafe_b64encode(json.dumps([kind, position, id]).encode()).decode().rstrip("=")


def decode(kind: str, cursor: str, is_position: Callable[[Any], bool]) -> tuple[Any, str]:
    """Returns position and id. Raises InvalidRequest for a text that is no cursor of such a list."""
    try:
        found, position, id = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (ValueError, TypeError, RecursionError):
        found, position, id = None, None, None
    if found != kind or not is_position(position) or not isinstance(id, str) or not id.isascii() or "\x00" in id:
        raise InvalidRequest("`cursor` is not one of this list: pass `next_cursor` of the page before", param="cursor")
    return position, id
