"""A refusal is the sentence for what a hub, the network or the disk did not do. It asks nothing of them."""

from __future__ import annotations

from typing import Final

from httpx2 import HTTPError, ProxyError
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from models.errors import InvalidSource, disk_is_full
from models.imports.hub.source import HubSource

ELSEWHERE: Final = "download it on another machine and give the directory instead"
KEPT: Final = "what has arrived is kept"
_REFUSED: Final = (401, 403)
_TOO_MANY: Final = 429


def refusal(source: HubSource, error: Exception) -> InvalidSource:
    """Returns the sentence about `error`, with the way out."""
    if isinstance(error, InvalidSource):
        return error
    return InvalidSource(_sentence(source, error))


def _sentence(source: HubSource, error: Exception) -> str:
    match error:
        case GatedRepoError():
            return (
                f"{source.id} is gated: accept its terms at {constants.ENDPOINT}/{source.id}, then set HF_TOKEN to a "
                "token of that account"
            )
        case RevisionNotFoundError():
            return f"{source.id} has no revision {source.revision!r}: give a branch, a tag or a commit of it"
        case RepositoryNotFoundError():
            return (
                f"There is no repository {source.id} at {constants.ENDPOINT}, or it is private: check the name, or set "
                "HF_TOKEN to a token that may read it"
            )
        case RemoteEntryNotFoundError():
            return f"{source.id} has lost a file since it was listed: start again"
        case HfHubHTTPError():
            return _status(source, error.response.status_code)
        case OfflineModeIsEnabled():
            return f"HF_HUB_OFFLINE is set and {source} is not on this machine: unset it, or {ELSEWHERE}"
        case _:
            return _unreached(source, error)


def _status(source: HubSource, status: int) -> str:
    if status in _REFUSED:
        return f"The hub refuses {source.id} with status {status}: set HF_TOKEN to a token that may read it"
    if status == _TOO_MANY:
        return f"The hub had too many requests from here (status {status}): start again later; {KEPT}"
    return f"The hub answered status {status} for {source.id}: start again later; {KEPT}"


def _unreached(source: HubSource, error: Exception) -> str:
    if disk_is_full(error):
        return f"The disk is full and {source.id} has not arrived whole: free space and start again; {KEPT}"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return f"{source.id} cannot be written here ({error.strerror}): mend the data directory and start again; {KEPT}"
    name = type(error).__name__
    if isinstance(error, ProxyError):
        return f"The proxy did not connect to {constants.ENDPOINT} ({name}): check HTTPS_PROXY, or {ELSEWHERE}"
    if isinstance(error, HTTPError | ConnectionError | TimeoutError):
        return (
            f"The hub at {constants.ENDPOINT} cannot be reached ({name}): check network, proxy and HF_ENDPOINT and "
            f"start again; {KEPT}. Where there is no network, {ELSEWHERE}"
        )
    return f"{source.id} could not be had from {constants.ENDPOINT} ({name}): start again, or {ELSEWHERE}"
