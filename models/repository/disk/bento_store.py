"""BentoML 1.4's model store sees a version of ours through the two files written here: `model.yaml` and `latest`. This
module imports no BentoML.

The keys are those of `bentoml._internal.models.model.ModelInfo`; `module` stays empty because BentoML is never asked
to load a version.
"""

from datetime import datetime
from pathlib import Path

import yaml

from models.manifest import Manifest
from models.repository.disk import durable

DESCRIPTION = "model.yaml"
LATEST = "latest"


def description(manifest: Manifest) -> bytes:
    """The content of `model.yaml`: the manifest's main facts as labels."""
    labels = {
        "architecture": manifest.architecture,
        "precision": manifest.precision,
        "digest": manifest.short_digest,
        "parent": manifest.lineage.parent or "",
    }
    info: dict[str, object] = {
        "name": manifest.name,
        "version": manifest.version,
        "module": "",
        "labels": labels,
        "options": {},
        "metadata": {"parameters": manifest.parameters, "context_window": manifest.context_window},
        "context": {
            "framework_name": "transformers",
            "framework_versions": {},
            "bentoml_version": "1.4.39",
            "python_version": "3.11",
        },
        "signatures": {},
        "api_version": "v1",
        "creation_time": datetime.fromisoformat(manifest.created_at).isoformat(),
    }
    text: str = yaml.safe_dump(info, sort_keys=False, allow_unicode=True)
    return text.encode()


def point_latest(directory: Path, version: str | None) -> None:
    """Make `version` the `latest` of a model's directory, atomically; None takes `latest` away."""
    latest = directory / LATEST
    if version is None:
        latest.unlink(missing_ok=True)
    elif not latest.is_file() or latest.read_text() != version:
        durable.replace(latest, version.encode())
