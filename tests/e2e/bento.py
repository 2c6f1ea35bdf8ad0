"""A bento, built and served as BentoML's users do: `bentoml build`, then `bentoml serve` with its tag."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from models.imports.starter import WEIGHTS, publish_demo
from models.repository.repository import Repository
from tests.e2e.server import ROOT, python


@dataclass(frozen=True)
class Bento:
    """`home` is the BENTOML_HOME with the bento and the model that it names."""

    home: Path
    tag: str

    @property
    def path(self) -> Path:
        return self.home / "bentos" / self.tag.replace(":", "/")


def build(home: Path) -> Bento:
    """Of this project, with the demo model in the store that it is built in."""
    publish_demo(Repository(home), WEIGHTS)
    built = subprocess.run(
        python("-m", "bentoml", "build", "--output", "tag"),
        cwd=ROOT,
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return Bento(home, built.stdout.strip().splitlines()[-1].removeprefix("__tag__:"))


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Of this process, but for its modules: what runs must come from the bento."""
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "BENTOML_PORT")}
    return {
        **known,
        "BENTOML_HOME": str(home),
        "BENTOML_DO_NOT_TRACK": "true",
        "DOSIRAK_IDLE_REPORTS": "false",
        **variables,
    }
