"""A download is one file of a listing on its way to a directory. It goes on where an earlier one was cut off.

    <name>.part   what has arrived; a killed process leaves it, and the next one asks for the rest only
    <name>        the whole file, as the hub lists it: its digest was computed while it arrived

huggingface_hub 2.4.0 begins every file again after a kill: each try has a temporary file of its own. So this module
asks for the bytes itself, with that library's session, address, token and errors.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from httpx2 import Response, TransportError
from huggingface_hub import constants, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # documented

from models.errors import InvalidSource
from models.imports.hub.downloads import PART
from models.imports.hub.listing import HubFile, Listing

Arrived = Callable[[int], None]
"""(bytes that arrived since the last call; negative where they are asked for again)"""
_PIECE: Final = 1 << 18
_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.5
_PARTIAL: Final = 206
_UNSATISFIABLE: Final = 416
_SERVER_ERRORS: Final = 500


def download(listing: Listing, file: HubFile, directory: Path, arrived: Arrived) -> None:
    """Puts `file` into `directory`, whole. `arrived` also gets the bytes of earlier tries. A connection that breaks is
    made again, up to 5 times without a byte. Raises what the session and the disk raise, and InvalidSource for content
    that is not as listed."""
    if (directory / file.name).exists():
        arrived(file.size)
        return
    (directory / file.name).parent.mkdir(exist_ok=True)
    part, tries, had = directory / (file.name + PART), 0, received(directory, file)
    arrived(had)
    while True:
        try:
            _go_on(listing, file, part, arrived)
            break
        except (TransportError, HfHubHTTPError, _EndedEarly) as error:
            if isinstance(error, HfHubHTTPError) and error.response.status_code < _SERVER_ERRORS:
                raise
            size = received(directory, file)
            tries = tries + 1 if size <= had else 1
            had = size
            if tries >= _TRIES:
                raise
            time.sleep(_PAUSE_SECONDS * tries)
    part.rename(directory / file.name)


def received(directory: Path, file: HubFile) -> int:
    """Returns the bytes of a file that are in the directory."""
    for path in (directory / file.name, directory / (file.name + PART)):
        if path.exists():
            return path.stat().st_size
    return 0


class _EndedEarly(ConnectionError):
    """The connection ended before the file did, and said nothing."""


def _go_on(listing: Listing, file: HubFile, part: Path, arrived: Arrived) -> None:
    """Appends the rest of a file to its part, and compares the whole with the listing."""
    with part.open("a+b") as stream:
        digest = _Digest(file)
        digest.read(stream)
        if digest.size < file.size:
            digest = _append(listing, file, stream, digest, arrived)
    if digest.size < file.size:
        raise _EndedEarly(f"{file.name} ended after {digest.size} of {file.size} bytes")
    if not digest.is_right:
        part.unlink()
        arrived(-digest.size)
        raise InvalidSource(f"{file.name} did not arrive as the hub lists it: start again, it is fetched anew")


def _append(listing: Listing, file: HubFile, stream: BinaryIO, digest: _Digest, arrived: Arrived) -> _Digest:
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if digest.size:
        headers["Range"] = f"bytes={digest.size}-"
    url = hf_hub_url(listing.source.id, file.name, revision=listing.commit)
    with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        if digest.size and not _continues(response, digest.size):
            stream.truncate(0)  # the server sends the file from its beginning, or knows a shorter one
            arrived(-digest.size)
            digest = _Digest(file)
        if response.status_code != _UNSATISFIABLE:
            hf_raise_for_status(response)
            for piece in response.iter_bytes(_PIECE):
                stream.write(piece)
                digest.update(piece)
                arrived(len(piece))
    return digest


def _continues(response: Response, at: int) -> bool:
    if response.status_code == _PARTIAL:
        return str(response.headers.get("Content-Range", "")).startswith(f"bytes {at}-")
    return response.is_error and response.status_code != _UNSATISFIABLE  # says nothing of the file


class _Digest:
    """The size and the digest of what has arrived of a file."""

    def __init__(self, file: HubFile) -> None:
        self._file = file
        self.size = 0
        self._hash = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)

    def read(self, stream: BinaryIO) -> None:
        stream.seek(0)
        while piece := stream.read(_PIECE):
            self.update(piece)

    def update(self, piece: bytes) -> None:
        self._hash.update(piece)
        self.size += len(piece)

    @property
    def is_right(self) -> bool:
        """Whether it is the listed content. A listing without a digest tells the size alone."""
        listed = self._file.sha256 or self._file.blob_id
        return self.size == self._file.size and listed in (None, self._hash.hexdigest())
