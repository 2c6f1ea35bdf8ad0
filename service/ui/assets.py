"""The UI's scripts, styles and strings as files over HTTP. Their address has a build: while no file changes, a browser
keeps them for ever; after an edit the next page names another build."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import FileResponse, Response

from service.errors import NotFound

STATIC: Final = Path(__file__).parent / "static"
STRINGS: Final = Path(__file__).parent / "strings"
TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
RULES: Final = "speculation.json"
RULES_TYPE: Final = "application/speculationrules+json"
_COMMENT: Final = re.compile(r"^[ ]*(//.*)?\n", re.MULTILINE)
_KEPT: Final = "public, max-age=31536000, immutable"


def build() -> str:
    """Returns the name of what the files are now: it changes with the size or the time of any of them."""
    digest = hashlib.sha256()
    for folder, names in _files().items():
        for name in names:
            stat = (folder / name).stat()
            digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def asset(named: str, path: str) -> Response:
    """Returns the file at `path` of the build `named`. Raises NotFound for what is no file of the UI."""
    folder = next((folder for folder, names in _files().items() if path in names), None)
    if folder is None:
        raise NotFound(f"The UI has no file {path[:80]!r}; load the page again", param="path")
    kind = RULES_TYPE if path == RULES else TYPES[Path(path).suffix]
    caching = _KEPT if named == build() else "no-cache"
    headers = {"Cache-Control": caching, "Content-Type": kind}
    if path.endswith(".js") and not path.startswith("vendor/"):  # those keep their licences
        return Response(script(folder / path), headers=headers)
    return FileResponse(folder / path, headers=headers)


def script(path: Path) -> str:
    """Returns a script without its lines of comment, a tenth of what a browser would read."""
    return _COMMENT.sub("", path.read_text(encoding="utf-8"))


@cache
def _files() -> dict[Path, frozenset[str]]:
    """The files by folder; strings are at `strings/`. New files are seen after a restart, edits at once."""
    shown = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.suffix in TYPES}
    texts = {f"strings/{path.name}" for path in STRINGS.glob("*.json")}
    return {STATIC: frozenset(shown), STRINGS.parent: frozenset(texts)}
