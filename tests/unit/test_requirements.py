"""`requirements.txt`, which the bento's image installs: what serving needs, pinned as tested, and nothing more."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return {canonicalize_name(line.partition("==")[0]): line for line in lines if line and line[0] != "#"}


def needed(wanted: Iterable[str]) -> set[str]:
    """All packages that these ask for on this platform, and those that they ask for."""
    waiting, seen = [Requirement(each) for each in wanted], set[tuple[str, frozenset[str]]]()
    while waiting:
        package = waiting.pop()
        key = (canonicalize_name(package.name), frozenset(package.extras))
        if key not in seen:
            seen.add(key)
            waiting += [each for each in map(Requirement, requires(package.name) or ()) if _applies(each, package)]
    return {name for name, _ in seen}


def _applies(asked: Requirement, by: Requirement) -> bool:
    return asked.marker is None or any(asked.marker.evaluate({"extra": extra}) for extra in (*by.extras, ""))


def test_they_are_what_the_project_needs_to_serve() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = needed([*PROJECT["dependencies"], *extras["postgres"], *extras["s3"]])
    known = pins("requirements.txt")
    # packages that torch and its like ask for where there is a GPU are left to their own pins
    assert set(known) == wanted & set(pins("constraints.txt"))


def test_they_are_pinned_as_tested() -> None:
    assert pins("requirements.txt").items() <= pins("constraints.txt").items()


def test_nothing_that_tests_or_measures_is_among_them() -> None:
    extras = PROJECT["optional-dependencies"]
    tools = {canonicalize_name(Requirement(each).name) for each in extras["dev"] + extras["load"]}
    serving = needed([*PROJECT["dependencies"], *extras["postgres"], *extras["s3"]])
    assert not set(pins("requirements.txt")) & (tools - serving)
    assert not {"pytest", "mypy", "ruff", "hypothesis", "locust"} & set(pins("requirements.txt"))
