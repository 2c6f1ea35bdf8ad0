"""Unknown fields of a body: refused by name, or left out and named in the response, as the setting says.

A field is unknown if no schema of this server has it. A known field that cannot act is refused in both cases.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final, TypeVar
from urllib.parse import quote

from fastapi import Request
from pydantic import BaseModel, ValidationError

from service.api.http.errors import field_name, is_hidden, refusal_of

IGNORED_HEADER: Final = "X-Ignored-Fields"
_MOST_NAMED: Final = 20
_ROUNDS: Final = 8
"""A model's own rules come after its fields', so an unknown field can come to light late."""
M = TypeVar("M", bound=BaseModel)


def without_unknown(request: Request, model: type[M], body: dict[str, Any]) -> M:
    """Returns the model of a body without its unknown fields, which the response will name. Raises InvalidRequest or
    UnsupportedField about any other field."""
    given, ignored = body, list[str]()
    for round_ in range(_ROUNDS):
        try:
            found = model.model_validate(given)
        except ValidationError as error:
            unknown = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
            given = given if ignored else deepcopy(body)
            if round_ == _ROUNDS - 1 or not unknown or not all(_removed(given, place) for place in unknown):
                raise refusal_of(error) from None
            ignored += [field_name(place) for place in unknown]
        else:
            break
    if ignored:
        request.state.ignored_fields = ", ".join(quote(each, safe=".[]_-") for each in ignored[:_MOST_NAMED])
    return found


def _removed(value: Any, place: tuple[int | str, ...]) -> bool:
    """Removes the field at a place. Returns whether it was there: a place inside of a choice between models has more
    parts than the body has levels."""
    *above, last = place
    for part in above:
        if is_hidden(part):
            continue
        if (isinstance(value, list) and isinstance(part, int)) or (isinstance(value, dict) and part in value):
            value = value[part]  # type: ignore[index]
        else:
            return False
    return isinstance(value, dict) and value.pop(last, value) is not value
