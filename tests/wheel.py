"""A wheel of this project's sources, made as a user's pip makes one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
FILES = ("pyproject.toml", "README.md", "LICENSE")


def built_wheel(folder: Path) -> Path:
    """Builds in `folder`, from a copy without compiled files."""
    for package in ("service", "models"):
        ignored = shutil.ignore_patterns("__pycache__", "built", "*.md")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return folder / "dist" / done.stdout.splitlines()[-1]
