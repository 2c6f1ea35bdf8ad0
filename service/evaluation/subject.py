"""The subject of a report is the version to measure, with its tokenizer, its texts and the version to compare it with.
It runs no engine."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Final

from models.baseline import baseline_of
from models.checkpoint.decoder_start import decoder_start
from models.demo.recall import RecallCase, cases
from models.manifest import Manifest
from models.repository import Repository
from models.starter import WEIGHTS as DEMO_FILES
from service.errors import InvalidRequest
from service.evaluation import texts as text_sets
from service.evaluation.planning import Extent
from service.evaluation.recall import SEED, prompt_of
from service.evaluation.texts import LENGTHS, Length, Text
from service.text.tokenizer import Tokenizer

TEMPLATE: Final = "chat_template.jinja"


class Subject:
    """`text_file` is a text of the user's; None for the project's dialogues."""

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
        return self._text_file.name if self._text_file else text_sets.DIALOGUES

    def texts(self, length: Length = LENGTHS[0]) -> list[Text]:
        """Returns all texts of a length. Raises InvalidRequest for a file that cannot be used, and for a window that
        has no room for the longest texts."""
        texts = self._split(self.manifest, self.tokenizer, length)
        if not texts and length == LENGTHS[0]:
            raise InvalidRequest(
                f"The window of {self.manifest.reference} is too short for dialogues: give a text of yours (--text)"
            )
        return texts

    @cached_property
    def baseline(self) -> Manifest | None:
        """The version to compare with, if it splits the texts as this version does."""
        found = baseline_of(self._repository, self.manifest)
        if found is None:
            return None
        theirs = Tokenizer.load(self._repository.path(found))
        return found if self._split(found, theirs, LENGTHS[0]) == self.texts() else None

    @cached_property
    def one_question_a_cell(self) -> list[int]:
        """The tokens of one recall question of each cell; empty but where the template is the demo model's."""
        theirs = self._repository.path(self.manifest) / TEMPLATE
        if not theirs.is_file() or theirs.read_bytes() != (DEMO_FILES / TEMPLATE).read_bytes():
            return []
        return [len(prompt_of(self.tokenizer, case)) for case in self.questions(1)]

    def questions(self, count: int) -> list[RecallCase]:
        """Returns so many recall questions of each cell."""
        return cases(SEED, per_cell=count)

    def _split(self, manifest: Manifest, tokenizer: Tokenizer, length: Length) -> list[Text]:
        window = manifest.context_window
        if self._text_file is not None:
            texts = text_sets.of_file(tokenizer, window, self._text_file, self._extent.tokens, length.piece_tokens)
        else:
            texts = text_sets.dialogues(tokenizer, window, self._extent.dialogues, length=length)
        has_encoder = bool(decoder_start(self._repository.path(manifest)))
        return [text.behind_encoder() for text in texts] if has_encoder else texts
