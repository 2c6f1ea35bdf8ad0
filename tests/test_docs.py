"""Documentation is a tested property: what the code has and `docs/` does not say fails here."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import get_args

import pytest
from pydantic import BaseModel
from typer.main import get_command

from service import api, errors
from service.cli import app as cli
from service.evaluation.scenarios import scenario
from service.evaluation.scenarios.figures import FigureName
from service.observability.metrics import Metrics
from service.settings import Settings
from tests.conformance import documented

ROOT = Path(__file__).parent.parent


DOCUMENTS = ["README.md", "README.ko.md", "CONTRIBUTING.md", "CHANGELOG.md", "loadtest/results/log.md"]
DOCUMENTS += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


def page(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_setting_with_its_default() -> None:
    text = page("docs/settings.md")
    for name, field in Settings.model_fields.items():
        default = "unset" if field.default is None else str(field.default)
        shown = default.lower() if isinstance(field.default, bool) else default
        assert f"| `DOSIRAK_{name.upper()}` | `{shown}` | {field.description} |" in text


def test_no_setting_that_is_gone() -> None:
    known = {f"DOSIRAK_{name.upper()}" for name in Settings.model_fields}
    for path in [ROOT / "README.md", ROOT / "README.ko.md", *(ROOT / "docs").rglob("*.md")]:
        named = set(re.findall(r"DOSIRAK_[A-Z0-9_]+[A-Z0-9]", path.read_text()))
        assert named <= known, f"{path.name} names {named - known}"


def test_every_metric() -> None:
    text = page("docs/metrics.md")
    for family in Metrics().registry.collect():
        assert f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type} |" in text


def test_every_route() -> None:
    text = page("docs/api.md")
    for route in documented():
        for method in route.methods or ():
            assert f"{method} {route.path}" in text, f"{method} {route.path} is not in docs/api.md"


MODELS = {
    name: kind
    for found in walk_packages(api.__path__, f"{api.__name__}.")
    if ".bento" not in found.name
    for name, kind in vars(import_module(found.name)).items()
    if isinstance(kind, type) and issubclass(kind, BaseModel)
}
"""The wire models of every protocol."""
EXAMPLE = re.compile(r"^```json (\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("name", "text"), EXAMPLE.findall(page("docs/api.md")))
def test_every_example_is_what_its_model_takes(name: str, text: str) -> None:
    """The word behind the fence's `json` names the model."""
    if name == "Error":
        assert json.loads(text).keys() >= {"error", "code", "error_type", "request_id"}
    elif name == "TritonError":
        assert json.loads(text).keys() == {"error"}
    else:
        MODELS[name].model_validate_json(text)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_command_that_sends_json_says_so(name: str) -> None:
    """Another content type is refused with 415, and curl's own is a form's."""
    joined = page(name).replace("\\\n", " ")
    for command in re.findall(r"curl [^\n]*-d '\{[^']*'[^\n]*", joined):
        assert "Content-Type: application/json" in command, command


def test_every_section_of_the_api_has_an_example() -> None:
    for section in page("docs/api.md").split("\n## ")[1:]:
        assert "```" in section, section.split("\n")[0]


@pytest.mark.parametrize("name", ["docs/api.md"])
def test_lines_are_short(name: str) -> None:
    for line in page(name).splitlines():
        assert len(line) <= 120, line


def test_every_error_code() -> None:
    text = page("docs/api.md")
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.DosirakError) and kind is not errors.DosirakError:
            assert re.search(rf"\| {kind.status} +\| `{kind.code}`", text), f"{kind.status} {kind.code}"


def test_every_command() -> None:
    text = page("docs/operations.md")
    root = get_command(cli)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        for words in [f"{name} {each}" for each in getattr(command, "commands", {})] or [name]:
            assert f"`dosirak {words}" in text, f"dosirak {words} is not in docs/operations.md"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_named_files_exist(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page(name)):
        assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"
    for path in re.findall(r"`((?:tests|service|models|docs|loadtest|docker)/[\w./-]+)`", page(name)):
        assert (ROOT / path).exists(), f"{name} names {path}"


def test_every_figure_and_every_key_of_a_scenario() -> None:
    text = page("docs/load.md")
    kinds = (scenario.OpenLoop, scenario.ClosedLoop, scenario.RequestKind, scenario.Promote, scenario.BeginRollout)
    keys = {name for kind in kinds for name in kind.model_fields}
    for name in (*get_args(FigureName), *keys, *scenario.Scenario.model_fields):
        assert f"`{name}`" in text or f"\n{name} = " in text or f"[{name}]" in text, f"{name} is not in docs/load.md"
    for path in (ROOT / "loadtest" / "scenarios").glob("*.toml"):
        assert f"`{path.name}`" in text
