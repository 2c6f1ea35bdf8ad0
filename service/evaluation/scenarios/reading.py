"""This module reads a scenario's file. Every error becomes one sentence that names the key and what to write."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from service.evaluation.scenarios import scenario
from service.evaluation.scenarios.figures import FigureName, NotMeasured
from service.evaluation.scenarios.scenario import Scenario

PARTS: dict[str, dict[str, type[BaseModel]]] = {
    "load": {"open": scenario.OpenLoop, "closed": scenario.ClosedLoop},
    "actions": {
        "promote": scenario.Promote,
        "rollout": scenario.BeginRollout,
        "abort_rollout": scenario.EndRollout,
        "promote_rollout": scenario.EndRollout,
    },
}
"""Parts that are of several kinds."""
FIGURES = ("limits", "worse_by")


def read_scenario(path: Path) -> Scenario:
    """Raises NotMeasured for a file that is missing, is no TOML, or is no scenario."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotMeasured(
            f"{path}: {error.strerror}; name a scenario's file, as loadtest/scenarios/smoke.toml"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NotMeasured(f"{path} is no TOML: {error}") from None
    try:
        return parse(content)
    except NotMeasured as error:
        raise NotMeasured(f"{path}: {error}") from None


def parse(content: dict[str, Any]) -> Scenario:
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        errors = sorted(error.errors(), key=lambda each: not _unknown(each))
        raise NotMeasured(_sentence(errors[0])) from None


def _unknown(error: Any) -> bool:
    place, kind = error["loc"], error["type"]
    return kind == "extra_forbidden" or (kind == "literal_error" and place[0] in FIGURES and place[-1] == "[key]")


def _sentence(error: Any) -> str:
    place, kind = error["loc"], error["type"]
    if _unknown(error):
        return _nearest(str(place[1] if place[0] in FIGURES else place[-1]), place)
    where, said = dotted(place), str(error["msg"]).removeprefix("Value error, ")
    if kind == "missing":
        return f"{where} is missing"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        known = ", ".join(PARTS.get(str(place[0]), {}))
        return f"{where}.kind is one of {known}"
    shown_input = "" if isinstance(error["input"], dict | list | Scenario | BaseModel) else f", not {error['input']!r}"
    return f"{where}: {said[0].lower()}{said[1:]}{shown_input}" if where else said


def _nearest(name: str, place: Sequence[str | int]) -> str:
    where = dotted(place if place[0] in FIGURES else place[:-1])
    known = _known(place)
    nearest = get_close_matches(name, known, n=1, cutoff=0.0)[0]
    what = "limit" if place[0] == "limits" else "figure" if place[0] == "worse_by" else "key"
    table = f" in [{where}]" if where else ""
    return f'unknown {what} "{name}"{table}: did you mean "{nearest}"? Known are {", ".join(known)}'


def _known(place: Sequence[str | int]) -> list[str]:
    if place[0] in FIGURES:
        return list(get_args(FigureName))
    model: type[BaseModel] = Scenario
    if place[0] == "requests" and len(place) > 1:
        model = scenario.RequestKind
    elif place[0] in PARTS and len(place) > 1:
        kinds = PARTS[str(place[0])]
        model = next(kinds[str(each)] for each in place if str(each) in kinds)
    return list(model.model_fields)


def dotted(place: Sequence[str | int]) -> str:
    """Returns a key's place as TOML's readers write it: without the tags of unions, tables counted from 1."""
    tags = {kind for kinds in PARTS.values() for kind in kinds}
    if place and place[0] in FIGURES:
        return ".".join(map(str, [part for part in place if part != "[key]"][:2])) if len(place) == 2 else str(place[0])
    words = list[str]()
    for at, part in enumerate(place):
        if isinstance(part, int):
            if words and at == 1:
                words[-1] += f"[{part + 1}]"
        elif not (part in tags and at in (1, 2)):
            words.append(part)
    return ".".join(words)
