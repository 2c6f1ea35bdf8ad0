"""This script writes `static/vendor`: Preact, its hooks and htm as their authors publish them, with licences and
sums. Run it only to take newer versions: `python -m service.ui.vendoring` (it needs npm, which nothing else does).

One change is made: hooks import Preact by a relative address, because a bare name would need a build or an inline map.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

VENDOR: Final = Path(__file__).parent / "static" / "vendor"
PACKAGES: Final = {"preact": "11.2.0", "htm": "3.1.1"}
FILES: Final = {
    "preact.js": ("preact", "dist/preact.mjs"),
    "hooks.js": ("preact", "hooks/dist/hooks.mjs"),
    "htm.js": ("htm", "dist/htm.module.js"),
}
BARE: Final = 'from"preact"'
RELATIVE: Final = 'from"./preact.js"'


def write() -> None:
    """Fetches the packages, and writes the files and `SOURCES.json` (package, version, sha256 of each file)."""
    sources: dict[str, dict[str, str]] = {}
    for package, version in PACKAGES.items():
        files = _fetched(package, version)
        (VENDOR / f"{package}-LICENSE.txt").write_bytes(files["LICENSE"])
        for name, (owner, path) in FILES.items():
            if owner == package:
                text = files[path].decode().replace(BARE, RELATIVE)
                script = text.partition("\n//# sourceMappingURL")[0].rstrip() + "\n"
                (VENDOR / name).write_text(script, encoding="utf-8")
                digest = hashlib.sha256(script.encode()).hexdigest()
                sources[name] = {"package": package, "version": version, "file": path, "sha256": digest}
    (VENDOR / "SOURCES.json").write_text(json.dumps(sources, indent=2) + "\n", encoding="utf-8")


def _fetched(package: str, version: str) -> dict[str, bytes]:
    """Returns the files of a published package by their path in it; npm checks the package's integrity."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", f"{package}@{version}"], cwd=folder, check=True, capture_output=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as packed:
            found = {member.name.partition("/")[2]: packed.extractfile(member) for member in packed.getmembers()}
            return {name: file.read() for name, file in found.items() if file}


if __name__ == "__main__":
    write()
