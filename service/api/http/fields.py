"""The fields of a body become a wire model here, or are refused by name.

An unknown field is refused, or left out and named in the response, as the setting says. A field that the body has one
level higher or lower is known, so that it is always refused, with its place:

    {"inputs": "x", "temperature": 0.9}  ─▶  `temperature` is not a field at this place: send it as
                                             `parameters.temperature`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache
from typing import Any, Final, TypeVar, get_args
from urllib.parse import quote

from fastapi import Request
from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from service.api.http.errors import field_name, is_hidden, refusal_about
from service.errors import InvalidRequest

IGNORED_HEADER: Final = "X-Ignored-Fields"
UNKNOWN: Final = "extra_forbidden"
_MOST_NAMED: Final = 20
_ROUNDS: Final = 8
"""A model's own rules come after its fields', so an unknown field can come to light late."""
_GENERAL: Final = frozenset({"id", "name", "type"})
"""Names that many objects have: such a field was not meant for another place."""
M = TypeVar("M", bound=BaseModel)
Json = dict[str, Any]
Place = tuple[int | str, ...]


def model_of(request: Request, model: type[M], body: Json) -> M:
    """Returns the model of a body, as the setting says of unknown fields. Raises InvalidRequest or UnsupportedField
    naming the first wrong field."""
    if not ignores_unknown(request):
        return validated(model, body)
    parsed, ignored = _without_unknown(model, body)
    note_ignored(request, ignored)
    return parsed


def ignores_unknown(request: Request) -> bool:
    """Returns whether the setting leaves out what a route does not know."""
    return bool(request.app.state.service.settings.unknown_fields == "ignore")


def note_ignored(request: Request, names: Iterable[str]) -> None:
    """Names in the response what was left out of the request."""
    ignored = [*getattr(request.state, "ignored_names", ()), *names]
    if ignored:
        request.state.ignored_names = ignored
        request.state.ignored_fields = ", ".join(quote(each, safe=".[]_-") for each in ignored[:_MOST_NAMED])


def validated(model: type[M], body: Json) -> M:
    """Returns the model. Raises InvalidRequest or UnsupportedField naming the first wrong field."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _refusal(model, body, error) from None


def _without_unknown(model: type[M], body: Json) -> tuple[M, list[str]]:
    """Returns the model of a body without its unknown fields, and the names of these. Raises as `validated` about any
    other field."""
    fields, ignored = body, list[str]()
    for _ in range(_ROUNDS):
        try:
            return model.model_validate(fields), ignored
        except ValidationError as error:
            written = [_written(model, fields, each["loc"]) for each in error.errors() if each["type"] == UNKNOWN]
            unknown = [place for place in written if _home(model, place) is None]
            fields = fields if ignored else deepcopy(body)
            if not unknown or not all(_removed(fields, place) for place in unknown):
                raise _refusal(model, body, error) from None
            ignored += map(field_name, unknown)
    return validated(model, fields), ignored


def _refusal(model: type[BaseModel], body: Json, error: ValidationError) -> InvalidRequest:
    """Returns the refusal of the first wrong field, at the place where the body has it."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = _written(model, body, first["loc"])
    context = first.get("ctx", {})
    if first["type"] == UNKNOWN and (home := _home(model, place)) is not None:
        context = {**context, "home": field_name(home)}
    return refusal_about(ErrorDetails(**{**first, "loc": place, "ctx": context}))


def _written(model: type[BaseModel], body: Json, place: Place) -> Place:
    """Returns the place that the body has a field at. A model may read the members of one field as if they stood beside
    it: `lifted` is its name. It may also read a text as an object: the members of that are in no body."""
    lifted = getattr(model, "lifted", "")
    inside = body.get(lifted)
    if place and place[0] not in body and isinstance(inside, dict) and place[0] in inside:
        place = (lifted, *place)
    value: Any = body
    for depth, part in enumerate(place):
        if isinstance(value, str):
            return place[:depth]
        if not is_hidden(part):
            value = _member(value, part)
    return place


def _member(value: Any, part: int | str) -> Any:
    """Returns what stands in a value at a part of a place; None where nothing does."""
    if isinstance(value, list) and isinstance(part, int):
        return value[part] if part < len(value) else None
    return value.get(part) if isinstance(value, dict) else None


def _removed(value: Any, place: Place) -> bool:
    """Removes the field at a place. Returns whether it was there: a model's own rules may name other places."""
    *above, last = (part for part in place if not is_hidden(part))
    for part in above:
        value = _member(value, part)
    return isinstance(value, dict) and value.pop(last, value) is not value


def _home(model: type[BaseModel], place: Place) -> Place | None:
    """Returns the place that a body has such a field at; None for an unknown field, and for one in a list."""
    shown = [part for part in place if not is_hidden(part)]
    name = shown[-1]
    if name in _GENERAL:
        return None
    if len(shown) == 1:
        return _members(model).get(str(name))
    return (name,) if len(shown) == 2 and name in _names(model) else None


@cache
def _members(model: type[BaseModel]) -> dict[str, Place]:
    """Returns the places of the fields one level down, by name; of two the first."""
    places: dict[str, Place] = {}
    for name, field in model.model_fields.items():
        outer = _names_of(name, field)[0]
        for inner in _models(field.annotation):
            for each in _names(inner):
                places.setdefault(each, (outer, each))
    return places


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(each for name, field in model.model_fields.items() for each in _names_of(name, field))


def _names_of(name: str, field: FieldInfo) -> list[str]:
    """Returns the names that clients may write a field by."""
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return [each for each in alias.choices if isinstance(each, str)]
    return [alias if isinstance(alias, str) else name]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the models that a field's value can be; not those in lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif getattr(annotation, "__origin__", None) not in (list, dict):
        for each in get_args(annotation):
            yield from _models(each)
