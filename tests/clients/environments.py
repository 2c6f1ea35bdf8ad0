"""This module builds the virtual environments of clients whose requirements are not ours, each from its pinned file.

`python -m tests.clients.environments NAME …` builds those named, or all. `--pin` writes their requirements anew, with
the newest versions there are.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent
BUILT: Final = ROOT.parent.parent / ".clients"
"""Kept between runs; git ignores it."""
LIGHT: Final = {
    "instructor": "instructor",
    "langchain": "langchain-openai",
    "litellm": "litellm",
    "llm": "llm",
    "pydantic-ai": "pydantic-ai-slim[openai]",
    "tritonclient": "tritonclient[http]",
}
"""What is built when a test first wants it: seconds each. A name, and what is installed for it."""
HEAVY: Final = {"aiperf": "aiperf", "guidellm": "guidellm", "lm-eval": "lm-eval[api]"}
"""What only `make clients` builds: up to 1 GB each."""
PACKAGES: Final = {**LIGHT, **HEAVY}
NODE: Final = "openai-node"
TYPESCRIPT: Final = "typescript"
NPM: Final = {NODE: ROOT / "node", TYPESCRIPT: ROOT / "typescript"}
"""Where the packages of those are pinned that npm builds."""
WITH_TORCH: Final = frozenset({"guidellm"})
"""They load their data with torch: they get our version of it, from where `make install` has it."""
HASHED: Final = frozenset({"litellm"})
"""Of these the files' hashes are pinned as well: releases of litellm were replaced by others' code once."""


class NotBuilt(Exception):
    """An environment is not there; the message says why, and how to build it."""


def python(name: str) -> Path:
    """Returns the interpreter of a client's environment, which is built now if it is light. Raises NotBuilt."""
    if name in HEAVY and not _is_built(name):
        raise NotBuilt(f"{name} is not built: make clients")
    build(name)
    return BUILT / name / "bin" / "python"


def build(name: str) -> None:
    """Builds a client's environment, unless it stands as its requirements say. Raises NotBuilt."""
    with _alone(name):
        if _is_built(name):
            return
        shutil.rmtree(BUILT / name, ignore_errors=True)
        if name in NPM:
            _build_node(name)
        else:
            _run(name, "venv", "--quiet", "--python", sys.executable, str(BUILT / name))
            at = ("--python", str(BUILT / name / "bin" / "python"))
            hashes = ("--require-hashes",) if name in HASHED else ()
            _run(name, "pip", "sync", "--quiet", *hashes, *at, str(_requirements(name)))
            if name in WITH_TORCH:
                torch = metadata.version("torch").partition("+")[0]
                _run(name, "pip", "install", "--quiet", *at, f"torch=={torch}")
        _stamp(name).write_text(_digest(name))


def version(name: str) -> str:
    """Returns the pinned version of the package that a client is."""
    package = PACKAGES[name].partition("[")[0]
    line = next(line for line in _requirements(name).read_text().splitlines() if line.startswith(f"{package}=="))
    return line.removeprefix(f"{package}==").partition(" ")[0]


def pin(name: str) -> None:
    """Writes a client's requirements with the newest versions, for every Python that we support."""
    options = ["--upgrade", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate"]
    if name in HASHED:
        options.append("--generate-hashes")
    if name in WITH_TORCH:
        elsewhere = BUILT / f"{name}.overrides"
        BUILT.mkdir(exist_ok=True)
        elsewhere.write_text("torch; python_version < '3'\n")
        options += ["--overrides", str(elsewhere)]
    command = [_uv(), "pip", "compile", "--quiet", *options, "-", "--output-file", str(_requirements(name))]
    subprocess.run(command, input=(PACKAGES[name] + "\n"), text=True, check=True)


def _build_node(name: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotBuilt(f"{name} needs node and npm (Debian: npm), which are not installed")
    folder = BUILT / name
    folder.mkdir(parents=True)
    for each in ("package.json", "package-lock.json"):
        shutil.copy(NPM[name] / each, folder)
    _call(name, [npm, "ci", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)])


def _run(name: str, *arguments: str) -> None:
    """uv reads its own variable for what pip calls PIP_FIND_LINKS."""
    links = {"UV_FIND_LINKS": found} if (found := os.environ.get("PIP_FIND_LINKS")) else {}
    _call(name, [_uv(), *arguments], **links)


def _call(name: str, command: Sequence[str], **variables: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise NotBuilt(f"{name} could not be installed ({''.join(why)}): python -m tests.clients.environments {name}")


def _uv() -> str:
    """uv is a package of ours for development: it stands beside the interpreter."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else "uv"


def _requirements(name: str) -> Path:
    return NPM[name] / "package-lock.json" if name in NPM else ROOT / "requirements" / f"{name}.txt"


def _digest(name: str) -> str:
    return sha256(_requirements(name).read_bytes() + sys.version.encode()).hexdigest()


def _stamp(name: str) -> Path:
    return BUILT / name / ".built"


def _is_built(name: str) -> bool:
    return _stamp(name).exists() and _stamp(name).read_text() == _digest(name)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Tests of two processes that want one environment build it once."""
    BUILT.mkdir(exist_ok=True)
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the environments of clients that tests run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*PACKAGES, *NPM)))
    parser.add_argument("--pin", action="store_true", help="write the requirements anew")
    asked = parser.parse_args()
    for name in asked.names or (*PACKAGES, *NPM):
        if asked.pin and name not in NPM:
            pin(name)
        try:
            build(name)
        except NotBuilt as error:
            sys.exit(str(error))
        print(f"{name} is built")


if __name__ == "__main__":
    main()
