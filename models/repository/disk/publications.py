"""The publications of a model say when each of its versions was made, so that a list in that order reads no manifest.
This module does not know what a manifest holds.

    data_dir/published/<name>     one line for each version: <created_at> <version>

The manifests are the truth and these lines a copy. A version without a whole line, as after a crash or from an earlier
release, is asked for its time once, and its line is added. A line whose version is gone means nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from models.errors import Corrupt, InvalidReference, NotFound
from models.repository.disk.layout import Layout
from models.repository.disk.remembered import Remembered

Moment = tuple[str, str]
"""The `created_at` and the version of a manifest: their order is the order of publishing."""
NO_WHOLE_VERSION: Final = (NotFound, Corrupt, InvalidReference)
"""Errors that say of a directory that it is no whole version. Any other error says nothing of the directory."""
_LINE: Final = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([a-z0-9._-]+)\n", re.MULTILINE)


class Publications:
    """The publications of every model. Safe to use from many threads and processes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._files = Remembered(_read)

    def newest_first(self, name: str, created_at: Callable[[str], str]) -> list[Moment]:
        """Returns the moments of the versions that have a directory, newest first. `created_at` reads the time of a
        version from its manifest; a directory that is no whole version is left out. Other errors are raised."""
        present = _directories(self._layout, name)
        known = self._known(name)
        missing = dict(_moments_of(present - known.keys(), created_at))
        self.add(name, missing)
        moments = {**known, **missing}
        return sorted(((moments[version], version) for version in present if version in moments), reverse=True)

    def add(self, name: str, moments: Mapping[str, str]) -> None:
        """Keeps the times of versions. Where the disk takes no more, they are asked for again."""
        if moments:
            lines = "".join(f"{moment} {version}\n" for version, moment in moments.items())
            with suppress(OSError):
                self._append(name, lines.encode())

    def _known(self, name: str) -> Mapping[str, str]:
        try:
            return self._files.of(self._layout.publications(name))
        except OSError:
            return {}

    def _append(self, name: str, lines: bytes) -> None:
        """One write, so that lines of several processes do not mix. It is not synced: a lost line is made again."""
        path = self._layout.publications(name)
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        try:
            os.write(descriptor, lines)
        finally:
            os.close(descriptor)


def _read(content: bytes) -> Mapping[str, str]:
    return {version.decode(): moment.decode() for moment, version in _LINE.findall(content)}


def _directories(layout: Layout, name: str) -> set[str]:
    try:
        with os.scandir(layout.models / name) as entries:
            return {entry.name for entry in entries if entry.is_dir()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _moments_of(versions: Iterable[str], created_at: Callable[[str], str]) -> Iterable[tuple[str, str]]:
    for version in versions:
        with suppress(*NO_WHOLE_VERSION):
            yield version, created_at(version)
