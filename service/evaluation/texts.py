"""This module chooses the texts that versions are measured on: the project's own, or a file of the user's.

    every model      general prose, code and chats in English and Korean (`general/`), always in the same order: a short
                     measurement has the first of them, so it shares them with a long one
    the demo model   dialogues in a lunch box shop, Korean and English, which is what it was trained for

In chats and dialogues the assistant's tokens count. Users' messages are read and not scored: a chat model was never
trained to write them. Elsewhere all tokens count but the first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from models.demo.grammar import Style, dialogue
from models.imports.starter import WEIGHTS as DEMO_FILES
from models.repository.report import TextSet
from service.errors import InvalidRequest
from service.host import available_memory
from service.text.messages import Document, Message
from service.text.tokenizer import Tokenizer

FIRST_DIALOGUE = 900_000_000  # far from the dialogues that training saw
FIRST_CALIBRATION = 800_000_000  # and from the dialogues that are measured
CALIBRATION = 8
DIALOGUES = "dialogues in Korean and English"
GENERAL = "prose, code and chats in English and Korean"
PIECE_TOKENS = 256
MAX_FILE_BYTES = 64 << 20
TEMPLATE: Final = "chat_template.jinja"
_WRITTEN: Final = Path(__file__).parent / "general"
_MESSAGE: Final = re.compile(r"^(user|assistant): ", re.MULTILINE)
_STYLE: Final = Style((6, 12))
_RUNNING: Final = 1.3
"""Memory that a model takes that runs on a few short texts, in bytes of its weights."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text's token ids, and the positions from 1 on whose prediction counts, ascending."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]

    def cut(self, tokens: int) -> Text:
        """Returns the text's beginning; all of its positions count where none would be left."""
        kept = tuple(at for at in self.positions if at < tokens)
        return Text(self.token_ids[:tokens], kept or tuple(range(1, min(tokens, len(self.token_ids)))))

    def scored(self, most: int) -> Text:
        """Returns the text up to the position that is the last of so many that count."""
        kept = self.positions[:most]
        return Text(self.token_ids[: kept[-1] + 1], kept) if kept else self

    def digest(self) -> str:
        return hashlib.sha256(repr((self.token_ids, self.positions)).encode()).hexdigest()

    def behind_encoder(self) -> Text:
        """Returns the text for a version whose encoder reads the first half (see `engine.runner.scoring`): what its
        decoder predicts."""
        half = len(self.token_ids) // 2
        return Text(self.token_ids, tuple(at for at in self.positions if at >= half))


def is_demo(directory: Path) -> bool:
    """Returns whether a version is the demo model, of whatever training: its files have the demo's chat template."""
    theirs = directory / TEMPLATE
    return theirs.is_file() and theirs.read_bytes() == (DEMO_FILES / TEMPLATE).read_bytes()


def project_texts(directory: Path, tokenizer: Tokenizer, window: int, count: int) -> list[Text]:
    """Returns the first `count` of the project's texts for a version."""
    made = dialogues if is_demo(directory) else general
    return made(tokenizer, window, count)


def general(
    tokenizer: Tokenizer, window: int, count: int = 1 << 20, of: Literal["measured", "calibration"] = "measured"
) -> list[Text]:
    """Returns the first `count` general texts, cut to `window`. The version's own chat template renders the chats."""
    texts = (_written(tokenizer, window, kind, content) for kind, content in _read(of))
    return [text for text in islice(texts, count) if text.positions]


def dialogues(tokenizer: Tokenizer, window: int, count: int, first: int = FIRST_DIALOGUE) -> list[Text]:
    """Returns dialogues with values and wordings that the demo model's training never saw, cut to `window`."""
    texts = []
    for number in range(count):
        made = dialogue(first + number, _STYLE, "test", "test")
        messages = [Message(message["role"], message["content"]) for message in made.messages]
        documents = [Document(document["text"], document.get("title")) for document in made.documents]
        texts.append(_chat(tokenizer, window, messages, documents))
    return [text for text in texts if text.positions]


def calibration(directory: Path, window: int) -> list[tuple[int, ...]]:
    """Returns a few other texts as the version's token ids, for quantizing and not for measuring. Returns none where
    memory does not hold the version's weights, which the library's model loads to run on them."""
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    if available_memory() < _RUNNING * weights:
        return []
    tokenizer, window = Tokenizer.load(directory), min(window, 512)
    if is_demo(directory):
        texts = dialogues(tokenizer, window, CALIBRATION, FIRST_CALIBRATION)
    else:
        texts = general(tokenizer, window, of="calibration")
    return [text.token_ids for text in texts]


def of_file(tokenizer: Tokenizer, window: int, path: Path, most: int) -> list[Text]:
    """Returns a UTF-8 text file in pieces, at most `most` tokens of it. Raises InvalidRequest."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(f"{path.name} is larger than {MAX_FILE_BYTES} bytes: give a shorter text")
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path.name} cannot be read as UTF-8 text: {type(error).__name__}") from None
    texts = _pieces(tokenizer.encode(content)[:most], min(PIECE_TOKENS, window))
    if not texts:
        raise InvalidRequest(f"{path.name} holds fewer than two tokens: give a longer text")
    return texts


def described(name: str, texts: Sequence[Text]) -> TextSet:
    """Returns the set by its content: equal digests mean that the same tokens were predicted at the same positions."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(repr((text.token_ids, text.positions)).encode())
    return TextSet(name, digest.hexdigest(), sum(len(text.positions) for text in texts))


def _read(name: str) -> Iterator[tuple[str, str]]:
    """Yields the kind and the content of each text of a file of texts."""
    whole = (_WRITTEN / f"{name}.txt").read_text(encoding="utf-8")
    for block in re.split(r"^=== ", whole, flags=re.MULTILINE)[1:]:
        kind, _, content = block.partition("\n")
        yield kind, content.rstrip("\n")


def _written(tokenizer: Tokenizer, window: int, kind: str, content: str) -> Text:
    if kind == "chat":
        _, *parts = _MESSAGE.split(content)
        messages = [Message(role, said.rstrip("\n")) for role, said in zip(parts[::2], parts[1::2], strict=True)]
        return _chat(tokenizer, window, messages)
    return _whole(tokenizer.encode(content)[:window])


def _chat(tokenizer: Tokenizer, window: int, messages: Sequence[Message], documents: Sequence[Document] = ()) -> Text:
    """Returns a chat by the version's template; written line by line, all of which counts, where there is none."""
    try:
        chat = tokenizer.encode_chat(messages, documents=documents, add_generation_prompt=False)
    except InvalidRequest:  # no template, or the template refuses such a chat
        return _whole(tokenizer.encode("\n".join(message.content for message in messages))[:window])
    answers = {at for at, message in enumerate(messages) if message.role == "assistant"}
    owners = islice(chat.owners(), window)
    return Text(chat.ids()[:window], tuple(at for at, owner in enumerate(owners) if at and owner in answers))


def _whole(token_ids: Sequence[int]) -> Text:
    return Text(tuple(token_ids), tuple(range(1, len(token_ids))))


def _pieces(token_ids: Sequence[int], size: int) -> list[Text]:
    cut = (_whole(token_ids[at : at + size]) for at in range(0, len(token_ids), size))
    return [piece for piece in cut if piece.positions]
