"""The bill of materials lists what an image holds, in CycloneDX: Python packages and Debian packages.

`python3 sbom.py PYTHON DPKG_STATUS PROJECT_FILE OUTPUT`. cyclonedx-bom reads the environment of PYTHON; this adds the
Debian packages, because that tool knows Python alone. The result is checked against CycloneDX's own schema.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

VERSION = SchemaVersion.V1_6


def main(python: str, status: str, project: str, output: str) -> None:
    document = environment(python, project)
    document["components"] += list(debian(Path(status).read_text(encoding="utf-8")))
    text = json.dumps(document, indent=1, ensure_ascii=False)
    wrong = JsonStrictValidator(VERSION).validate_str(text)
    if wrong is not None:
        sys.exit(f"the bill of materials is not valid CycloneDX: {wrong}")
    Path(output).write_text(text + "\n", encoding="utf-8")
    print(f"bill of materials: {len(document['components'])} components")


def environment(python: str, project: str) -> dict[str, Any]:
    words = ["--pyproject", project, "--output-reproducible", "--of", "JSON", "--sv", VERSION.to_version()]
    command = [sys.executable, "-m", "cyclonedx_py", "environment", *words, python]
    made: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return made


def debian(status: str) -> Iterator[dict[str, Any]]:
    """Yields a component for each package of dpkg's file `status`."""
    for paragraph in status.strip().split("\n\n"):
        package = HeaderParser().parsestr(paragraph)
        name, version, architecture = package["Package"], package["Version"], package["Architecture"]
        if package["Status"] != "install ok installed":
            continue
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={quote(architecture)}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main(*sys.argv[1:])
