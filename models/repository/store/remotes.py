"""The remotes that there are, by their URLs: a directory, or a bucket."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from models.errors import InvalidSource
from models.repository.store.directory import DirectoryRemote
from models.repository.store.place import require_store_url
from models.repository.store.remote import Remote


def remote_of(url: str) -> Remote:
    """Returns the remote of `file:///path` or `s3://bucket/prefix`. Raises InvalidSource for anything else, and where
    the package for it is missing."""
    try:
        parts = urlsplit(require_store_url(url))
    except ValueError as error:
        raise InvalidSource(f"The URL of a store {error}") from None
    if parts.scheme == "file":
        return DirectoryRemote(url, Path(unquote(parts.path)))
    try:
        from models.repository.store.s3 import S3Remote
    except ModuleNotFoundError:
        raise InvalidSource("s3:// needs the package obstore: pip install 'dosirak[s3]'") from None
    return S3Remote(url, parts.netloc, unquote(parts.path).strip("/"))
