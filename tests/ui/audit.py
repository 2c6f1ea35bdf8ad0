"""axe-core, the accessibility checker, from npm's package in a cache of this user; never part of the repository."""

from __future__ import annotations

import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

VERSION = "4.14.1"
CACHE = Path.home() / ".cache" / "dosirak-tests" / f"axe-{VERSION}.js"
MEMBER = "package/axe.min.js"
RUN = "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"


@cache
def source() -> str:
    """The checker's script. Skips the test where neither the cache nor npm has it."""
    if not CACHE.is_file():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", f"axe-core@{VERSION}", "--silent"]
        try:
            subprocess.run(command, cwd=CACHE.parent, check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.SubprocessError):
            pytest.skip(f"axe-core is not here: npm pack axe-core@{VERSION} needs npm and a network once")
        archive = CACHE.parent / f"axe-core-{VERSION}.tgz"
        with tarfile.open(archive) as packed:
            script = packed.extractfile(MEMBER)
            assert script is not None
            CACHE.write_bytes(script.read())
    return CACHE.read_text(encoding="utf-8")


def violations(page: Page) -> list[str]:
    """What axe finds on the page as it is now, one line each. The script goes in past the policy, as a person's
    developer tools would."""
    page.evaluate(source())
    found: list[dict[str, Any]] = page.evaluate(RUN)
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}" for each in found for node in each["nodes"]
    ]
