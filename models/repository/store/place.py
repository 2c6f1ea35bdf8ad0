"""A store's place is its URL and how much of it one data directory keeps. It opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where versions are shared: the store's URL, None for the data directory alone; and the most bytes of weights
    that the data directory keeps besides those in use, 0 for no limit."""

    url: str | None = None
    cache_bytes: int = 0


ALONE = StorePlace()


def require_store_url(url: str) -> str:
    """Returns the URL of a store. Raises ValueError for any other, with what to write."""
    parts = urlsplit(url)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("must have no query and no credentials: AWS_ACCESS_KEY_ID and its like give those")
    is_directory = parts.scheme == "file" and not parts.netloc and parts.path.strip("/")
    if not is_directory and not (parts.scheme == "s3" and parts.netloc):
        raise ValueError("must be file:///path or s3://bucket/prefix")
    return url
