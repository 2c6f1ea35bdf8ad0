"""The image of a bento without a daemon: `bentoml containerize` with a stand-in for docker, its steps done by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.bento import Bento, environment
from tests.e2e.server import ROOT, python

STAND_IN = """#!{python}
import pathlib, shutil, sys
if sys.argv[1] == "version":
    print("27.0.0")
else:
    shutil.copytree(pathlib.Path.cwd(), {context!r}, symlinks=True)
"""
MOUNT = re.compile(r"--mount=\S+ *")
UV = re.compile(r"uv --directory (\S+) pip install")


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


def install(context: Path) -> Path:
    """What the steps after the system's packages do, in a virtual environment that the entry point finds; by pip, which
    knows where this machine gets packages. Returns the environment."""
    subprocess.run(python("-m", "venv", str(context / ".venv")), check=True)
    wanted = [step for step in steps(context) if UV.search(step) or "build.py" in step]
    assert len(wanted) == 2, "the packages, then the kernels"
    search = f"{context}/.venv/bin:/usr/local/bin:/usr/bin:/bin"
    variables = {**environment(context), "BENTO_PATH": str(context), "PATH": search}
    for step in wanted:
        done = subprocess.run(
            ["bash", "-c", UV.sub(r"cd \1 && python -m pip install --quiet", step)],
            cwd=context,
            env=variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return context / ".venv"
