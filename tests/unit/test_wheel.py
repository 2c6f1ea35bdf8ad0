"""The wheel holds what the service reads beside its modules: templates, the UI, kernel sources, weights."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.wheel import ROOT, built_wheel


def test_every_file_that_is_read_is_in_the_wheel(tmp_path: Path) -> None:
    held = set(zipfile.ZipFile(built_wheel(tmp_path)).namelist())
    for folder in (
        "service/api/http/templates",
        "service/engine/runner/native/src",
        "service/ui",
        "models/demo/weights",
    ):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix not in (".pyc", ".md"))
        wanted = {str(path.relative_to(ROOT)) for path in files}
        assert wanted and wanted <= held, wanted - held
