"""The rules for a draft version: what makes drafts for a version must read and write the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from models.checkpoint.decoder_start import decoder_start
from models.manifest import Manifest
from service.errors import DosirakError, InvalidRequest
from service.text.files import read_files
from service.text.vocabulary import Vocabulary


class Drafts:
    """The choice of the draft version, by a request or by a setting."""

    def __init__(self, resolve: Callable[[str], Manifest], default: str | None) -> None:
        """`resolve` raises DosirakError. `default` is the reference of the draft version for the default model."""
        self._resolve = resolve
        self._default = default

    def named(self, manifest: Manifest, reference: str) -> Manifest:
        """Returns the version that is to make drafts for `manifest`. Raises DosirakError."""
        draft = self._resolved(reference)
        require_draft(manifest, draft)
        return draft

    def default(self, manifest: Manifest) -> Manifest | None:
        """Returns the default draft version; None for the version that is it. Raises DosirakError."""
        draft = None if self._default is None else self._resolved(self._default)
        if draft is None or draft == manifest:
            return None
        require_draft(manifest, draft)
        return draft

    def _resolved(self, reference: str) -> Manifest:
        try:
            return self._resolve(reference)
        except DosirakError as error:
            error.param = "draft"
            raise


def require_draft(manifest: Manifest, draft: Manifest) -> None:
    """Raises InvalidRequest for a version that cannot make drafts for `manifest`, as far as manifests say."""
    if draft.digest == manifest.digest:
        raise InvalidRequest(
            f"{manifest.reference} cannot make drafts for itself; name a smaller version", param="draft"
        )
    if draft.has_adapter:
        raise InvalidRequest(f"{draft.reference} is an adapter; name a version with weights of its own", param="draft")


def require_same_tokens(manifest: Manifest, draft: Manifest, directory: Path, draft_directory: Path) -> None:
    """Raises InvalidRequest unless both versions have the same token for each id that both have. One of them may have
    more, as the sizes of one family do. The directories hold the versions' files."""
    if decoder_start(directory) or decoder_start(draft_directory):
        raise InvalidRequest("an encoder-decoder model neither makes drafts nor gets them", param="draft")
    ours, theirs = (Vocabulary(read_files(each)).token_ids for each in (directory, draft_directory))
    texts = {id: text for text, id in theirs.items()}
    for text, id in ours.items():
        if id in texts and texts[id] != text:
            raise InvalidRequest(
                f"{draft.reference} has other tokens than {manifest.reference}: token {id} is {texts[id][:40]!r} there "
                f"and {text[:40]!r} here; name a version with the same tokenizer",
                param="draft",
            )
