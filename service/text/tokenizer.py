"""The tokenizer of one version: text and chats → token ids, token ids → text. Knows no engine, window or wire format.

Control tokens (`<|im_end|>`, `</s>`, …) inside messages and documents are ordinary characters: only the version's
template writes control tokens. Raw text given to `encode` is the caller's own prompt: there they count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Encoding

from service.errors import InvalidRequest
from service.text.chat import ChatEncoder, EncodedChat
from service.text.files import TokenizerFiles, read_files
from service.text.messages import Document, Message
from service.text.segments import Memory, Splitting, digest_of
from service.text.streams import TextStream
from service.text.vocabulary import LONG_TEXT, Vocabulary, require_text

__all__ = ["LONG_TEXT", "EncodedText", "Tokenizer"]

_COUNTED = 100_000
"""Texts whose number of tokens is remembered."""
_USUALLY_AROUND = 8
_OWNERS = 64
"""The number of owners whose texts are remembered."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A raw text's tokens. `ids` and `added` build lists of `count` items."""

    encoding: Encoding

    @property
    def count(self) -> int:
        return len(self.encoding)

    def ids(self) -> list[int]:
        return self.encoding.ids

    def added(self) -> list[bool]:
        """True for tokens that the text does not hold: BOS and the like."""
        return [mask == 1 for mask in self.encoding.special_tokens_mask]


class Tokenizer:
    """Remembers pieces of texts and their numbers of tokens; safe from any thread."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._vocabulary = vocabulary = Vocabulary(files)
        self._chat = ChatEncoder(vocabulary, files.chat_template, files.named_tokens)
        self._named = dict(files.named_tokens)
        self.vocab_size = vocabulary.size
        self.bos_token_id = self._id_of("bos_token")
        self.pad_token_id = self._id_of("pad_token")
        eos = self._id_of("eos_token")
        self.stop_token_ids = tuple(dict.fromkeys((*files.eos_token_ids, *(() if eos is None else (eos,)))))
        """End-of-sequence ids of generation_config.json (else config.json), then the tokenizer's own."""
        unknown = self._id_of("unk_token")
        told = (id for id in (unknown, self.pad_token_id, *self.stop_token_ids) if id is not None)
        self.stand_in_id = next(told, 0)
        """An id that says nothing: the tokenizer's unknown, padding or end token, else 0."""
        self.model_max_length = files.model_max_length
        """Tokens; 0 when no file says."""
        self.chat_template = files.chat_template
        self._splitting = Splitting(vocabulary)
        self._forget()
        self._owners: OrderedDict[str, Tokenizer] = OrderedDict()

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Reads tokenizer.json and, where present, tokenizer_config.json, special_tokens_map.json, config.json,
        generation_config.json, chat_template.jinja|json. Raises InvalidRequest for files that cannot be used."""
        return cls(read_files(directory))

    def _forget(self) -> None:
        self._counted: dict[bytes, int] = {}
        self._memory = Memory(self._splitting)

    def of(self, owner: str) -> Tokenizer:
        """The same tokenizer with a memory of its own for the texts of `owner`: how long a prompt takes tells nobody
        what others have asked."""
        known = self._owners.pop(owner, None)
        if known is None:
            known = copy(self)
            known._forget()
        self._owners[owner] = known
        while len(self._owners) > _OWNERS:
            self._owners.popitem(last=False)
        return known

    def _id_of(self, name: str) -> int | None:
        token = self._named.get(name)
        return None if token is None else self._vocabulary.id_of(token)

    def named_token(self, name: str) -> str | None:
        """The text of `bos_token`, `eos_token`, `pad_token`, … or None."""
        return self._named.get(name)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raises InvalidRequest for a lone surrogate. From LONG_TEXT characters on, call it in a thread."""
        require_text(text, "inputs")
        return self._vocabulary.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_text(self, text: str) -> EncodedText:
        """As `encode`, counted before any list is made, and with the tokens that the tokenizer adds marked."""
        require_text(text, "inputs")
        return EncodedText(self._vocabulary.encode(text, add_special_tokens=True))

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> list[tuple[int, str, int, int]]:
        """(id, text, start, stop) per token, in characters. `text` is the slice; an added token's own text with
        start = stop = 0. Tokens that share one character (bytes of an emoji) share its slice."""
        require_text(text, "inputs")
        encoding = self._vocabulary.encode(text, add_special_tokens=add_special_tokens)
        return [
            (id, text[start:stop] if stop > start else self._vocabulary.token(id) or "", start, stop)
            for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        ]

    def render_chat(
        self, messages: Sequence[Message], *, documents: Sequence[Document] = (), add_generation_prompt: bool = True
    ) -> list[int]:
        """The chat's ids as the version's template writes it, equal to transformers' `apply_chat_template`. Raises
        InvalidRequest where the template is missing, refuses the messages, or does too much."""
        return list(self.encode_chat(messages, documents=documents, add_generation_prompt=add_generation_prompt).ids())

    def encode_chat(
        self, messages: Sequence[Message], *, documents: Sequence[Document] = (), add_generation_prompt: bool = True
    ) -> EncodedChat:
        """As `render_chat`, with each token's owner: a message, a document, or the template."""
        return self._chat.encode(tuple(messages), tuple(documents), add_generation_prompt, self._memory)

    def message_tokens(self, message: Message) -> int:
        """About what a message takes of a chat, its texts counted once: with what the template writes around it."""
        return sum(map(self.text_tokens, message.texts)) + self._around * (1 + len(message.tool_calls))

    def text_tokens(self, text: str) -> int:
        """Of a text by itself, remembered by its digest: no text is kept."""
        key = digest_of(text)
        count = self._counted.get(key)
        if count is None:
            if len(self._counted) >= _COUNTED:
                self._counted.clear()
            count = self._counted[key] = len(self._vocabulary.encode(text))
        return count

    @cached_property
    def has_later_systems(self) -> bool:
        """Whether the template writes a system message that is not the chat's first."""
        chat = (Message("system", "a"), Message("system", "b"), Message("user", "c"))
        try:
            return None not in self.encode_chat(chat).shares.messages
        except InvalidRequest:
            return False

    @cached_property
    def _around(self) -> int:
        """Tokens around one message, rounded up; of a template that refuses to be asked, a usual number."""
        one, answer = Message("user", "a"), Message("assistant", "a")
        try:
            once, thrice = (self.encode_chat(chat).count for chat in ((one,), (one, answer, one)))
        except InvalidRequest:
            return _USUALLY_AROUND
        return max(0, -(-(thrice - once) // 2) - self.text_tokens("a"))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Unfinished characters become U+FFFD; unknown ids have no text."""
        return self._vocabulary.decode(ids, skip_special_tokens=skip_special_tokens)

    def text_stream(self, skip_special_tokens: bool = True) -> TextStream:
        """The incremental form of `decode`, for one sequence."""
        return self._vocabulary.text_stream(skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own writing of a token; None for an unknown id."""
        return self._vocabulary.token(token_id)

    def token_text(self, token_id: int) -> str:
        """One token's text as it stands in mid-answer, control tokens shown; empty for an unknown id."""
        return self._vocabulary.token_text(token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._vocabulary.special
