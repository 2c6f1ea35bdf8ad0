"""A listing is what a repository of the hub holds at one commit: names, sizes and digests. It holds no content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from huggingface_hub import HfApi

from models.checkpoint.pooling import POOLING_CONFIG
from models.errors import InvalidSource
from models.imports.hub.gguf_choice import SUFFIX
from models.imports.hub.refusals import refusal
from models.imports.hub.source import HubSource
from models.manifest import is_file_name

_SECONDS: Final = 20.0
_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository, by its path in it. Large files have the `sha256` of their content; small ones have
    `blob_id`, git's name of the content."""

    name: str
    size: int
    sha256: str | None = None
    blob_id: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of `source` at `commit`, by name. Of files in sub-directories it has `POOLING_CONFIG` and GGUF files
    alone."""

    source: HubSource
    commit: str
    files: dict[str, HubFile]


def read(source: HubSource) -> Listing:
    """Asks the hub. Raises InvalidSource with the way out."""
    try:
        info = HfApi().model_info(source.id, revision=source.revision, files_metadata=True, timeout=_SECONDS)
    except Exception as error:  # the client raises its own, httpx2's and the system's errors
        raise refusal(source, error) from error
    files = {
        each.rfilename: HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None, each.blob_id)
        for each in info.siblings or ()
        if _is_wanted(each.rfilename)
    }
    return Listing(source, _checked(source, info.sha), files)


def _is_wanted(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    is_gguf = is_file_name(name) and name.lower().endswith(SUFFIX)
    return is_file_name(path) or path == POOLING_CONFIG or (is_gguf and is_file_name(directory))


def commit_of(source: HubSource, seconds: float = _SECONDS) -> str:
    """Asks the hub for the commit that the revision is now. Raises InvalidSource."""
    try:
        info = HfApi().model_info(source.id, revision=source.revision, expand=["sha"], timeout=seconds)
    except Exception as error:  # as in `read`
        raise refusal(source, error) from error
    return _checked(source, info.sha)


def _checked(source: HubSource, commit: str | None) -> str:
    """Returns the commit, which becomes a part of file names."""
    if commit is None or not _COMMIT.fullmatch(commit):
        raise InvalidSource(f"The hub names no commit for {source}: check HF_ENDPOINT")
    return commit
