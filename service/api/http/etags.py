"""This module reads `If-Match`: the one state that the client knows of the resource to change."""

from __future__ import annotations

from service.errors import InvalidRequest


def tag_of(if_match: str | None) -> str | None:
    """Returns the text between the quotes. Raises InvalidRequest for anything but one strong tag."""
    if if_match is None:
        return None
    if len(if_match) < 2 or if_match[0] != '"' or if_match[-1] != '"' or '"' in if_match[1:-1]:
        raise _refusal()
    return if_match[1:-1]


def revision_of(if_match: str | None) -> int | None:
    """Returns the same for a session, whose tags are numbers."""
    tag = tag_of(if_match)
    if tag is None:
        return None
    if not tag.isascii() or not tag.isdigit() or len(tag) > 18:
        raise _refusal()
    return int(tag)


def _refusal() -> InvalidRequest:
    return InvalidRequest('If-Match must be one ETag as it was told, as in "3"', param="If-Match")
