"""A bento, built and served as BentoML's users do: `bentoml build`, then `bentoml serve` with its tag; and the context
that `bentoml containerize` hands to a docker, for which a program stands in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from models.imports.starter import WEIGHTS, publish_demo
from models.repository.repository import Repository
from tests.e2e.server import ROOT, python

STAND_IN = """#!{python}
import pathlib, shutil, sys
if sys.argv[1] == "version":
    print("27.0.0")
else:
    shutil.copytree(pathlib.Path.cwd(), {context!r}, symlinks=True)
"""
MOUNT = re.compile(r"--mount=\S+ *")


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


def containerize(bento: Bento, directory: Path) -> Path:
    """The context that docker is given, with the Dockerfile; `directory` must not exist yet."""
    tools = bento.home / "tools"
    tools.mkdir(exist_ok=True)
    docker = tools / "docker"
    docker.write_text(STAND_IN.format(python=sys.executable, context=str(directory)))
    docker.chmod(0o755)
    variables = environment(bento.home)
    made = subprocess.run(
        python("-m", "bentoml", "containerize", bento.tag, "--backend", "docker"),
        cwd=ROOT,
        env={**variables, "PATH": f"{tools}:{variables['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert directory.is_dir(), made.stdout + made.stderr
    return directory


def steps(context: Path) -> list[str]:
    """The commands of the Dockerfile, in order, whatever layers they make."""
    text = (context / "env" / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    return [MOUNT.sub("", line.removeprefix("RUN ")).strip() for line in text.splitlines() if line.startswith("RUN ")]
