"""Parsers of a version say in which forms its reasoning and its calls of tools are read, in place of what its chat
template tells. They are records beside the version, so that a change makes no new version; a version made of this one
gets a copy. It knows no forms.

document parsers, <name>/<version>   the version's Parsers
"""

from __future__ import annotations

from typing import Final

import msgspec

from models.errors import Corrupt
from models.manifest import Manifest
from models.repository.repository import PARSERS, Repository


class Parsers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of forms; None leaves it to the template, "none" reads nothing."""

    reasoning_parser: str | None = None
    tool_parser: str | None = None


BY_TEMPLATE: Final = Parsers()


def parsers_of(repository: Repository, manifest: Manifest) -> Parsers:
    """Raises Corrupt."""
    content = repository.records.document(PARSERS, f"{manifest.name}/{manifest.version}")
    if content is None:
        return BY_TEMPLATE
    try:
        return msgspec.json.decode(content, type=Parsers)
    except msgspec.DecodeError as error:
        raise Corrupt(f"The parsers of {manifest.reference} are damaged: {error}; set them again") from None


def put_parsers(repository: Repository, manifest: Manifest, parsers: Parsers) -> None:
    """Raises Conflict."""
    content = None if parsers == BY_TEMPLATE else msgspec.json.encode(parsers)
    with repository.locked(manifest.name):
        repository.records.put_document(PARSERS, f"{manifest.name}/{manifest.version}", content)
