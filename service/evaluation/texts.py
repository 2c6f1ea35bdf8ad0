"""This module chooses the texts that versions are measured on: the project's own dialogues in Korean and English, or a
file of the user's.

In dialogues the assistant's tokens count. Users' messages are read and not scored: a chat model was never trained to
write them. In a file all tokens count but the first of each piece.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from models.demo.dialogue import Dialogue
from models.demo.grammar import Style, dialogue
from models.report import TextSet
from service.errors import InvalidRequest
from service.host import available_memory
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

FIRST_DIALOGUE = 900_000_000  # far from the dialogues that training saw
FIRST_CALIBRATION = 800_000_000  # and from the dialogues that are measured
CALIBRATION = 8
DIALOGUES = "dialogues in Korean and English"
PIECE_TOKENS = 512
MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Text:
    """A text's token ids, and the positions from 1 on whose prediction counts, ascending."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]

    def cut(self, tokens: int) -> Text:
        """Returns the text's beginning; all of its positions count where none would be left."""
        kept = tuple(at for at in self.positions if at < tokens)
        return Text(self.token_ids[:tokens], kept or tuple(range(1, min(tokens, len(self.token_ids)))))

    def digest(self) -> str:
        return hashlib.sha256(repr((self.token_ids, self.positions)).encode()).hexdigest()

    def behind_encoder(self) -> Text:
        """Returns the text for a version whose encoder reads the first half (see `runner.scoring`): what its decoder
        predicts."""
        half = len(self.token_ids) // 2
        return Text(self.token_ids, tuple(at for at in self.positions if at >= half))


@dataclass(frozen=True, slots=True)
class Length:
    """The length of texts: the style of dialogues, the most tokens of one, and the most of a piece of a file."""

    style: Style
    dialogue_tokens: int
    piece_tokens: int


_RUNNING: Final = 1.3
"""Memory that a model takes that runs on a few short texts, in bytes of its weights."""
LENGTHS: Final = (
    Length(Style((6, 12)), 1 << 20, PIECE_TOKENS),
    Length(Style((2, 4), shop_facts=2, rows=2), 256, 256),
    Length(Style((1, 2), shop_facts=1, rows=1), 128, 128),
)
"""Long first: a model that is too slow for enough long texts gets shorter ones."""


def dialogues(
    tokenizer: Tokenizer, window: int, count: int, first: int = FIRST_DIALOGUE, length: Length = LENGTHS[0]
) -> list[Text]:
    """Returns dialogues with values and wordings that the demo model's training never saw. The version's own chat
    template renders them; without a template they are written line by line. Dialogues that do not fit `window` are
    cut."""
    texts = []
    window = min(window, length.dialogue_tokens)
    for number in range(count):
        made = dialogue(first + number, length.style, "test", "test")
        try:
            texts.append(_chat(tokenizer, window, made))
        except InvalidRequest:  # no template, or the template refuses such a chat
            lines = "\n".join(message["content"] for message in made.messages)
            texts += _pieces(tokenizer.encode(lines), window)
    return [text for text in texts if text.positions]


def calibration(directory: Path, window: int) -> list[tuple[int, ...]]:
    """Returns a few other dialogues as the version's token ids, for quantizing and not for measuring. Returns none
    where memory does not hold the version's weights, which the library's model loads to run on them."""
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    if available_memory() < _RUNNING * weights:
        return []
    texts = dialogues(Tokenizer.load(directory), min(window, 512), CALIBRATION, FIRST_CALIBRATION)
    return [text.token_ids for text in texts]


def of_file(tokenizer: Tokenizer, window: int, path: Path, most: int, piece_tokens: int = PIECE_TOKENS) -> list[Text]:
    """Returns a UTF-8 text file in pieces, at most `most` tokens of it. Raises InvalidRequest."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(f"{path.name} is larger than {MAX_FILE_BYTES} bytes: give a shorter text")
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path.name} cannot be read as UTF-8 text: {type(error).__name__}") from None
    texts = _pieces(tokenizer.encode(content)[:most], min(piece_tokens, window))
    if not texts:
        raise InvalidRequest(f"{path.name} holds fewer than two tokens: give a longer text")
    return texts


def described(name: str, texts: Sequence[Text]) -> TextSet:
    """Returns the set by its content: equal digests mean that the same tokens were predicted at the same positions."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(repr((text.token_ids, text.positions)).encode())
    return TextSet(name, digest.hexdigest(), sum(len(text.positions) for text in texts))


def _chat(tokenizer: Tokenizer, window: int, made: Dialogue) -> Text:
    chat = tokenizer.encode_chat(
        [Message(message["role"], message["content"]) for message in made.messages],
        documents=[Document(document["text"], document.get("title")) for document in made.documents],
        add_generation_prompt=False,
    )
    answers = {at for at, message in enumerate(made.messages) if message["role"] == "assistant"}
    owners = islice(chat.owners(), window)
    return Text(chat.ids()[:window], tuple(at for at, owner in enumerate(owners) if at and owner in answers))


def _pieces(token_ids: Sequence[int], size: int) -> list[Text]:
    cut = (tuple(token_ids[at : at + size]) for at in range(0, len(token_ids), size))
    return [Text(piece, tuple(range(1, len(piece)))) for piece in cut if len(piece) > 1]
