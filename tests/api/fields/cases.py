"""A case says what one field of a body does: where its value shows, or that it is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from dataclasses import field as with_default
from itertools import pairwise
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel

from service.api.shared.schemas import NOTHING, Wire

Body = dict[str, Any]
ANYTHING: Final = object()
"""A value that shows if the answer, the engine's request or the log changes at all."""
UNREAD: Final = object()
"""The wrong value of a field that is never read, such as what a client has made of an answer."""
LATER: Final = "no value that asks for nothing"


@dataclass(frozen=True, slots=True)
class Case:
    """`field` is written as errors write it: `messages[0].role`. `at` is the place where `shows` appears, such as
    `engine.top_k`, `answer.usage.total_tokens`, `log.user` or `headers.x-request-id`; it must not appear there without
    the field. `shows` is a value or a rule about it. `beside` is added to the body with and without the field. With
    `wrong` the field only says what holds anyway: `value` is accepted, and `wrong` is refused."""

    field: str
    value: Any
    at: str = ""
    shows: Any = ANYTHING
    beside: Mapping[str, Any] = with_default(default_factory=dict)
    is_refused: bool = False
    wrong: Any = ANYTHING

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the field's name, and those of the members of an object that is its value."""
        members = self.value if isinstance(self.value, dict) else ()
        return (self.name, *(f"{self.name}.{member}" for member in members))

    @property
    def name(self) -> str:
        """Returns the field without positions: `messages[].role`."""
        return "".join("[" if part == "[" else part for part in _parts_shown(self.field))


def acts(field: str, value: Any, at: str = "", shows: Any = ANYTHING, **beside: Any) -> Case:
    """Returns the case of a field whose own value shows at a place, unless `shows` says what else does."""
    return Case(field, value, at, value if at and shows is ANYTHING else shows, beside)


def refuses(field: str, value: Any, **beside: Any) -> Case:
    return Case(field, value, beside=beside, is_refused=True)


def notes(field: str, value: Any, wrong: Any, **beside: Any) -> Case:
    """Returns the case of a field that asks for what holds anyway, or for nothing that a model could show, as a name
    for people: its description says so."""
    return Case(field, value, beside=beside, wrong=wrong)


@dataclass(frozen=True, slots=True)
class Table:
    """The cases of one route's body. `body` is one that is answered; `beside` adds to it for all fields that begin with
    a prefix. `is_flat`: errors name a field without what stands around it."""

    model: type[BaseModel]
    path: str
    body: Mapping[str, Any]
    cases: tuple[Case, ...]
    method: str = "POST"
    beside: Mapping[str, Mapping[str, Any]] = with_default(default_factory=dict)
    is_flat: bool = False

    def all(self) -> Iterator[Case]:
        """Yields the table's cases, and a refusal for each field that cannot act yet."""
        yield from map(self._with_its_prefix, self.cases)
        named = {case.name for case in self.cases}
        for name, owner in fields(self.model):
            if owner is not None and name not in named:
                yield self._with_its_prefix(Case(name.replace("[]", "[0]"), LATER, is_refused=True))

    def _with_its_prefix(self, case: Case) -> Case:
        added = [more for prefix, more in self.beside.items() if case.name.startswith(prefix)]
        beside: Body = {}
        for more in (*added, case.beside):
            _merged(beside, more)
        return replace(case, beside=beside)

    def forgotten(self) -> list[str]:
        """Returns the fields that no case is about."""
        named = [name for case in self.cases for name in case.names]
        known = [name for name, owner in fields(self.model) if owner is None]
        parents = [name for name in known if any(_is_below(other, name) for other, _ in fields(self.model))]
        return [name for name in known if name not in named and name not in parents]


def under(prefix: str, cases: tuple[Case, ...], **changes: Any) -> tuple[Case, ...]:
    """Returns the cases of a model for the place of a body where the model stands."""
    return tuple(replace(case, field=f"{prefix}{case.field}", **changes) for case in cases)


def but(cases: tuple[Case, ...], *others: Case) -> tuple[Case, ...]:
    """Returns the cases with others in place of those of the same fields."""
    names = {case.name for case in others}
    return (*(case for case in cases if case.name not in names), *others)


def fields(
    model: type[BaseModel], prefix: str = "", above: tuple[Any, ...] = ()
) -> Iterator[tuple[str, type[BaseModel] | None]]:
    """Yields every field of a model and of those in it by its name on the wire; with its model if it cannot act yet."""
    if model in above:
        return
    for name, info in model.model_fields.items():
        wire = info.alias or name
        yield f"{prefix}{wire}", None
        for inner, place in dict.fromkeys(_models_in(info.annotation)):
            yield from fields(inner, f"{prefix}{wire}{place}.", (*above, model))
    for name in model.later if issubclass(model, Wire) else ():
        if name not in model.model_fields:
            yield f"{prefix}{name}", model


def neutral(model: type[BaseModel], name: str) -> tuple[Any, ...]:
    return model.later[name] if issubclass(model, Wire) else NOTHING


def _models_in(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
        return
    place = "[]" if get_origin(annotation) is list else ""
    for inner in get_args(annotation):
        for model, below in _models_in(inner):
            yield model, f"{place}{below}"


def _is_below(name: str, other: str) -> bool:
    return name.startswith((f"{other}.", f"{other}["))


def _parts_shown(field: str) -> Iterator[str]:
    for part in field.replace("[", "\0[").split("\0"):
        yield f"[]{part[part.index(']') + 1 :]}" if part.startswith("[") else part


def body_of(table: Table, case: Case, with_it: bool = True) -> Body:
    """Returns the body with the field, or the same without it; a field that the body has anyway keeps its value
    there."""
    body = _merged(deepcopy(dict(table.body)), case.beside)
    if with_it:
        _put(body, case.field.replace("[", ".").replace("]", "").split("."), deepcopy(case.value))
    return body


def _merged(body: Body, more: Mapping[str, Any]) -> Body:
    """Returns `body` with the members of `more`; objects are joined, and None takes a member away."""
    for key, value in more.items():
        if value is None and key in body:
            del body[key]
        elif isinstance(value, Mapping) and isinstance(body.get(key), dict):
            _merged(body[key], value)
        else:
            body[key] = deepcopy(value)
    return body


def _put(body: Any, parts: list[str], value: Any) -> None:
    for part, following in pairwise(parts):
        empty: Any = [] if following.isdigit() else {}
        if isinstance(body, list):
            while len(body) <= int(part):
                body.append(deepcopy(empty))
            body = body[int(part)]
        else:
            body[part] = body[part] if isinstance(body.get(part), dict | list) else empty
            body = body[part]
    if isinstance(body, list):
        body[int(parts[-1]) :] = [value]
    else:
        body[parts[-1]] = value


def place(observed: Any, at: str) -> Any:
    """Returns what stands at a place; None where there is none."""
    for part in at.split(".") if at else ():
        if isinstance(observed, list):
            observed = observed[int(part)] if part.lstrip("-").isdigit() and int(part) < len(observed) else None
        else:
            observed = observed.get(part) if isinstance(observed, Mapping) else None
    return observed


def shown(case: Case, found: Any) -> bool:
    if isinstance(case.shows, Callable):  # type: ignore[arg-type]
        return bool(case.shows(found))
    return bool(found == case.shows)
