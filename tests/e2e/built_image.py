"""Images built by `docker/build-local.sh`, which keeps its base, wheels and layers from one run to the next."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.server import ROOT

SCRIPT = ROOT / "docker" / "build-local.sh"
NEEDED = ("buildah", "debootstrap", "unshare", "chroot", "python3.11")
SIZES = re.compile(r"^dosirak:(\w+)  (\d+) MB unpacked, (\d+) MB as an archive$", re.MULTILINE)
FINDING = re.compile(r"^  (ok|BROKEN) +(.*)$", re.MULTILINE)


def missing() -> str | None:
    """Why no image can be built here, or None."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"an image is built with {', '.join(absent)}, which this machine lacks"
    return None if os.geteuid() == 0 else "an image is built by root"


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dosirak-image"


def buildah(*words: str) -> list[str]:
    """The command with the store that the script keeps its layers in."""
    return ["buildah", "--root", str(cache() / "storage"), "--runroot", str(cache() / "run"), *words]


@dataclass(frozen=True)
class Built:
    """What the script printed, and the archive."""

    archive: Path
    printed: str

    @property
    def unpacked(self) -> int:
        """Megabytes."""
        found = SIZES.search(self.printed)
        assert found is not None, self.printed
        return int(found[2])

    @property
    def findings(self) -> dict[str, bool]:
        return {text: state == "ok" for state, text in FINDING.findall(self.printed)}

    def configuration(self) -> dict[str, Any]:
        """What a runtime reads of the archive."""
        with tarfile.open(self.archive) as archive:

            def read(digest: str) -> dict[str, Any]:
                member = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
                assert member is not None
                told: dict[str, Any] = json.loads(member.read())
                return told

            index = archive.extractfile("index.json")
            assert index is not None
            (manifest,) = json.loads(index.read())["manifests"]
            config: dict[str, Any] = read(read(manifest["digest"])["config"]["digest"])["config"]
            return config


def build(target: str, archive: Path, seconds: float) -> Built:
    command = [str(SCRIPT), "--target", target, "--smoke", str(archive)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return Built(archive, done.stdout)
