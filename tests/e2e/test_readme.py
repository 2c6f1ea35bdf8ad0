"""Every `curl` of the README runs as it stands, and its answer is the one that the README shows.

In the shown answers, "…" stands for what is left out. Times differ from machine to machine: a number with a fraction
matches every number.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Final

import pytest

from tests.e2e.server import ROOT, Server

PORT: Final = "localhost:3000"
FRACTION: Final = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@dataclass(frozen=True)
class Shown:
    """One command of a document, and what the document shows as its output."""

    document: str
    command: str
    output: str

    def __str__(self) -> str:
        return f"{self.document}: {self.command[:60]}"


def shown(document: str) -> list[Shown]:
    """The commands of a document's code blocks: each begins with "$ " and ends where its quotes are closed."""
    found = []
    for block in re.findall(r"```\n(.*?)```", (ROOT / document).read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            end = next(n for n in range(1, len(lines) + 1) if "\n".join(lines[:n]).count("'") % 2 == 0)
            found.append(Shown(document, "\n".join(lines[:end]), "\n".join(lines[end:])))
    return found


REQUESTS: Final = [
    each for name in ("README.md", "README.ko.md") for each in shown(name) if each.command.startswith("curl")
]


def compact(text: str) -> str:
    return FRACTION.sub("#", re.sub(r"\s+", "", text))


def test_each_readme_shows_three_requests() -> None:
    assert [each.document for each in REQUESTS] == ["README.md"] * 3 + ["README.ko.md"] * 3


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_request_of_the_readme_gets_the_answer_that_it_shows(request_: Shown, served: Server) -> None:
    assert PORT in request_.command
    command = request_.command.replace(f"http://{PORT}", served.url).replace(PORT, served.url)
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    answer = compact(ran.stdout)
    for piece in filter(None, compact(request_.output).split("…")):
        assert piece in answer, f"{piece}\nis not in the rest of the answer to\n{command}\n{ran.stdout}"
        answer = answer[answer.index(piece) + len(piece) :]
