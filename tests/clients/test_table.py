"""The clients that README names are those of the tests, in the versions that are tested."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.clients import environments

ROOT = Path(__file__).parent.parent.parent
ROW = re.compile(r"^\| \[([^]]+)\]\((tests/[^)]+)\) \| ([0-9.]+) \|", re.MULTILINE)
OURS = {"anthropic": "anthropic", "huggingface_hub": "huggingface_hub", "ollama (Python)": "ollama"} | {
    "openai (Python)": "openai"
}
"""Clients of our own environment."""


def pinned(client: str) -> str:
    if client in OURS:
        return version(OURS[client])
    if client == "openai (Node)":
        locked = json.loads((environments.ROOT / "node" / "package-lock.json").read_text())
        return str(locked["packages"]["node_modules/openai"]["version"])
    [name] = [each for each, package in environments.PACKAGES.items() if client in (each, package)]
    return environments.version(name)


@pytest.mark.parametrize("readme", ["README.md", "README.ko.md"])
def test_the_table(readme: str) -> None:
    rows = ROW.findall((ROOT / readme).read_text())
    assert {client: known for client, _, known in rows} == {client: pinned(client) for client, _, _ in rows}
    linked = {ROOT / path for _, path, _ in rows}
    assert all(path.exists() for path in linked)
    assert {path for path in linked if path.parent == environments.ROOT} | {Path(__file__)} == {
        *environments.ROOT.glob("test_*.py")
    }
