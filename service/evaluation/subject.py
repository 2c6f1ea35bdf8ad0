"""The subject of a report is the version to measure, with its tokenizer, its texts and the version to compare it with.
It runs no engine."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from models.checkpoint.decoder_start import decoder_start
from models.demo.recall import RecallCase, cases
from models.manifest import Manifest
from models.repository.published import baseline_of
from models.repository.repository import Repository
from service.errors import InvalidRequest
from service.evaluation import texts as text_sets
from service.evaluation.planning import Extent
from service.evaluation.recall import SEED, prompt_of
from service.evaluation.texts import Text
from service.text.tokenizer import Tokenizer


class Subject:
    """`text_file` is a text of the user's; None for the project's texts."""

    def __init__(self, repository: Repository, manifest: Manifest, extent: Extent, text_file: Path | None) -> None:
        self.manifest = manifest
        self._repository = repository
        self._extent = extent
        self._text_file = text_file

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self._repository.path(self.manifest))

    @property
    def text_name(self) -> str:
        if self._text_file:
            return self._text_file.name
        return text_sets.DIALOGUES if self._is_demo else text_sets.GENERAL

    @cached_property
    def texts(self) -> list[Text]:
        """All texts of the extent. Raises InvalidRequest for a file that cannot be used, and where the window or the
        vocabulary has no room for a text of the project."""
        if texts := self._split(self.manifest, self.tokenizer):
            return texts
        raise InvalidRequest(
            f"{self.manifest.reference} can be measured on no text of the project: give a text of yours (--text)"
        )

    @cached_property
    def baseline(self) -> Manifest | None:
        """The version to compare with, if it splits the texts as this version does."""
        found = baseline_of(self._repository, self.manifest)
        if found is None:
            return None
        theirs = Tokenizer.load(self._repository.path(found))
        return found if self._split(found, theirs) == self.texts else None

    @cached_property
    def _is_demo(self) -> bool:
        return text_sets.is_demo(self._repository.path(self.manifest))

    @cached_property
    def one_question_a_cell(self) -> list[int]:
        """The tokens of one recall question of each cell; empty but for the demo model."""
        return [len(prompt_of(self.tokenizer, case)) for case in self.questions(1)] if self._is_demo else []

    def questions(self, count: int) -> list[RecallCase]:
        """Returns so many recall questions of each cell."""
        return cases(SEED, per_cell=count)

    def _split(self, manifest: Manifest, tokenizer: Tokenizer) -> list[Text]:
        window, extent, directory = manifest.context_window, self._extent, self._repository.path(manifest)
        if self._text_file is not None:
            texts = text_sets.of_file(tokenizer, window, self._text_file, extent.tokens)
        else:
            texts = text_sets.project_texts(directory, tokenizer, window, extent.texts)
        if decoder_start(directory):
            texts = [text.behind_encoder() for text in texts]
        return [text.scored(extent.scored) for text in texts] if extent.scored else texts
