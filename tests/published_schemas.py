"""Published schemas, those in `tests/schemas`, say what is wrong with a manifest of Kubernetes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

SCHEMAS = Path(__file__).parent / "schemas"


@cache
def validators(*files: str) -> dict[str, Any]:
    """Returns the validators of all kinds in these files, by kind."""
    found = {}
    for name in files:
        told = json.loads((SCHEMAS / name).read_text())
        for kind, schema in told["kinds"].items():
            found[kind] = jsonschema_rs.validator_for({**schema, "definitions": told["definitions"]})
    return found


def wrong(manifest: dict[str, Any], files: tuple[str, ...]) -> list[str]:
    """Returns a sentence for each place where the manifest is not what the schema of its kind takes."""
    errors = validators(*files)[manifest["kind"]].iter_errors(manifest)
    return [f"{manifest['kind']} {'/'.join(map(str, error.instance_path))}: {error.message}" for error in errors]
