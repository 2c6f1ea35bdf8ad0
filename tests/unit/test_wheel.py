"""The wheel holds what the service reads beside its modules: templates, the UI, kernel sources, weights."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
FILES = ("pyproject.toml", "README.md", "LICENSE")


def test_every_file_that_is_read_is_in_the_wheel(tmp_path: Path) -> None:
    for package in ("service", "models"):
        ignored = shutil.ignore_patterns("__pycache__", "built", "*.md")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    held = set(zipfile.ZipFile(tmp_path / "dist" / done.stdout.splitlines()[-1]).namelist())
    for folder in ("service/api/templates", "service/runner/native/src", "service/ui", "models/demo/weights"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix not in (".pyc", ".md"))
        wanted = {str(path.relative_to(ROOT)) for path in files}
        assert wanted and wanted <= held, wanted - held
