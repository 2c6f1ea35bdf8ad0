"""This module makes OpenAI's lists: a page behind an id, forwards or backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Query

from service.api.shared.answer_schemas import Shown
from service.errors import NotFound

Item = TypeVar("Item")
Order = Literal["asc", "desc"]
After = Annotated[str, Query(max_length=128, description="The id of the entry before the page.")]


class IdPage(Shown, Generic[Item]):
    """One page of a list as OpenAI has it: `after` takes `last_id`. The ids are null where there are no entries."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(data: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Returns a page of these entries."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def cut_page(entries: Sequence[dict[str, Any]], after: str | None, limit: int, order: Order) -> dict[str, Any]:
    """Returns a page of entries that are all at hand, oldest first. Raises NotFound for `after` where it is none of
    them."""
    ordered = entries if order == "asc" else entries[::-1]
    ids = [each["id"] for each in ordered]
    if after is not None and after not in ids:
        raise NotFound(f"There is no item {after[:80]!r} to list behind: take `last_id` of a page", param="after")
    first = 0 if after is None else ids.index(after) + 1
    return page_of(ordered[first : first + limit], has_more=first + limit < len(ordered))
