"""The tokenizer of one version turns text and chats into token ids and back. It knows no engine, window or wire format.

Control tokens (`<|im_end|>`, `</s>`, …) inside messages and documents are ordinary characters, because only the
version's template writes control tokens. Raw text for `encode` is the caller's own prompt. There, control tokens act.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tokenizers import Encoding

from service.errors import InvalidRequest
from service.text.chat import ChatEncoder, EncodedChat
from service.text.files import TokenizerFiles, read_files
from service.text.messages import ChatOptions, Document, Message, Tool
from service.text.probing import QUESTION, Probes
from service.text.reasoning import ReasoningForm, reasoning_form_of
from service.text.recent import Recent
from service.text.segments import MOST_COUNTED, Memory, Splitting, digest_of
from service.text.streams import TextStream
from service.text.tools import ToolFormat
from service.text.tools.choosing import refuse_format
from service.text.vocabulary import Vocabulary, require_text

_SHORT_TOOL = Tool("f")
_SHORT_VARIABLE = 64
"""The most characters of a variable of the template with which turns are counted."""
_VARIANTS = 16
"""The most chat options of one owner that are remembered."""
_OWNERS = 64
"""The most owners whose texts are remembered."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A raw text's tokens. `ids` and `added` build lists of `count` items. Where the text itself begins with BOS, as a
    prompt that a client rendered does, the tokenizer's own one is left out: `has_bos`."""

    encoding: Encoding
    has_bos: bool = False

    @property
    def count(self) -> int:
        return len(self.encoding) - self.has_bos

    def ids(self) -> list[int]:
        return self.encoding.ids[self.has_bos :]

    def added(self) -> list[bool]:
        """Returns True for each token that the text does not hold, such as BOS."""
        return [mask == 1 for mask in self.encoding.special_tokens_mask[self.has_bos :]]

    def offsets(self) -> list[tuple[int, int]]:
        return self.encoding.offsets[self.has_bos :]


class Tokenizer:
    """Encodes and decodes. Remembers pieces of texts and their numbers of tokens. Safe from any thread."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._vocabulary = vocabulary = Vocabulary(files)
        self._chat = ChatEncoder(vocabulary, files.chat_template, files.named_tokens, files.tool_template)
        self._options = ChatOptions()
        self._parsers: tuple[str | None, str | None] = (None, None)
        self._named = dict(files.named_tokens)
        self.vocab_size = vocabulary.size
        self.bos_token_id = self._id_of("bos_token")
        self.pad_token_id = self._id_of("pad_token")
        eos = self._id_of("eos_token")
        self.stop_token_ids = tuple(dict.fromkeys((*files.eos_token_ids, *(() if eos is None else (eos,)))))
        """End-of-sequence ids of generation_config.json, then those of config.json and the tokenizer's own."""
        unknown = self._id_of("unk_token")
        meaningless = (id for id in (unknown, self.pad_token_id, *self.stop_token_ids) if id is not None)
        self.stand_in_id = next(meaningless, 0)
        """An id without meaning: the tokenizer's unknown, padding or end token, else 0."""
        self.model_max_length = files.model_max_length
        """Tokens; 0 when no file says."""
        self.chat_template = files.chat_template
        self.class_name = files.class_name
        """The library's name of its class; None when no file says."""
        self._splitting = Splitting(vocabulary)
        self.probes = Probes(self)
        self._forget()
        self._owners = Recent[str, Tokenizer](_OWNERS)

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Reads tokenizer.json and, where present, tokenizer_config.json, special_tokens_map.json, config.json,
        generation_config.json, chat_template.jinja|json. Raises InvalidRequest for files that cannot be used."""
        return cls(read_files(directory))

    def _forget(self) -> None:
        self._counted = Recent[bytes, int](MOST_COUNTED)
        self._memory = Memory(self._splitting)
        self._variants = Recent[ChatOptions, Tokenizer](_VARIANTS)

    def of(self, owner: str) -> Tokenizer:
        """Returns the same tokenizer with a separate memory for the texts of `owner`. So the time of an encoding does
        not reveal other owners' prompts."""
        known = self._owners.get(owner)
        if known is None:
            known = copy(self)
            known._forget()
            self._owners[owner] = known
        return known

    def with_options(self, options: ChatOptions) -> Tokenizer:
        """Returns the same tokenizer for chats with these tools and variables of the template. Raises
        UnsupportedField for a variable that cannot be set."""
        if options == self._options:
            return self
        known = self._variants.get(options)
        if known is None:
            known = copy(self)
            known._chat, known._options = self._chat.with_options(options), options
            known.probes = Probes(known)
            self._variants[options] = known
        return known

    def read_as(self, reasoning: str | None, tools: str | None) -> Tokenizer:
        """Returns the same tokenizer for a version whose reasoning and calls are read in the forms of these names; None
        leaves it to the template, "none" reads nothing."""
        known = copy(self)
        known._parsers = (reasoning, tools)
        known._chat = self._chat.read_as(tools)
        known.probes = Probes(known)
        known._forget()
        known._owners = Recent(_OWNERS)
        return known

    @property
    def reasoning_form(self) -> ReasoningForm | None:
        """Returns how reasoning is marked; None where there is none."""
        return reasoning_form_of(self.template_texts, self._parsers[0])

    @property
    def describes_tools(self) -> bool:
        """Whether a chat's tools are described in its messages, because the template places none."""
        return self._chat.describes_tools

    @property
    def describes_calls(self) -> bool:
        """Whether earlier calls and their results are sent as texts, because the template leaves them out."""
        return self._chat.describes_calls

    @property
    def known_tool_format(self) -> ToolFormat | None:
        """Returns how calls are written; None where it is not known."""
        return self._chat.tool_format

    @property
    def tool_format(self) -> ToolFormat:
        """Returns how calls are written. Raises UnsupportedField where it is not known."""
        return self.known_tool_format or refuse_format(self.template_texts)

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token by its text in the vocabulary."""
        return self._vocabulary.id_of(token)

    def tool_tokens(self, messages: Sequence[Message], documents: Sequence[Document] = ()) -> int:
        """Returns how many tokens a chat has more for its tools; below 0 where they take a longer text's place."""
        plain = self.with_options(replace(self._options, tools=()))
        if not self._options.tools:
            return 0
        return self.chat_tokens(messages, documents=documents) - plain.chat_tokens(messages, documents=documents)

    def continues(self, messages: Sequence[Message]) -> bool:
        """Returns whether the prompt of this chat ends behind the content of its last message."""
        return self._options.is_open(messages)

    @property
    def has_tools(self) -> bool:
        return bool(self._options.tools)

    @property
    def template_texts(self) -> str:
        """Returns every text that the chat template itself can write, joined by NUL."""
        return self._chat.literals

    @property
    def template_variables(self) -> frozenset[str]:
        """Returns the variables of the chat template that a request can set."""
        return self._chat.variables

    @property
    def long_text(self) -> int:
        """Returns the number of characters from which on a text is worth a thread."""
        return self._vocabulary.long_text

    def _id_of(self, name: str) -> int | None:
        token = self._named.get(name)
        return None if token is None else self._vocabulary.id_of(token)

    def named_token(self, name: str) -> str | None:
        """Returns the text of `bos_token`, `eos_token`, `pad_token`, … or None."""
        return self._named.get(name)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of a text. Raises InvalidRequest for a lone surrogate. Call it in a thread from `long_text`
        characters on."""
        return self.encode_text(text, add_special_tokens=add_special_tokens).ids()

    def encode_text(self, text: str, *, add_special_tokens: bool = True) -> EncodedText:
        """Encodes as `encode`. The result has a count before any list is made, and marks the tokens that the tokenizer
        adds."""
        require_text(text, "inputs")
        encoding = self._vocabulary.encode(text, add_special_tokens=add_special_tokens)
        bos = self._named.get("bos_token")
        if not (bos and add_special_tokens and self._adds_bos and text.startswith(bos)):
            return EncodedText(encoding)
        return EncodedText(encoding, has_bos=encoding.token_to_chars(1) == (0, len(bos)))

    @cached_property
    def _adds_bos(self) -> bool:
        return self._vocabulary.encode("", add_special_tokens=True).ids[:1] == [self.bos_token_id]

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> list[tuple[int, str, int, int]]:
        """Returns (id, text, start, stop) per token, in characters. `text` is the slice; an added token has its own
        text and start = stop = 0. Tokens that share one character (bytes of an emoji) share its slice."""
        encoded = self.encode_text(text, add_special_tokens=add_special_tokens)
        return [
            (id, text[start:stop] if stop > start else self._vocabulary.token(id) or "", start, stop)
            for id, (start, stop) in zip(encoded.ids(), encoded.offsets(), strict=True)
        ]

    def render_chat(
        self, messages: Sequence[Message], *, documents: Sequence[Document] = (), add_generation_prompt: bool = True
    ) -> list[int]:
        """Returns the chat's ids by the version's template, equal to transformers' `apply_chat_template`. Raises
        InvalidRequest if the template is missing, refuses the messages, or passes a bound."""
        return list(self.encode_chat(messages, documents=documents, add_generation_prompt=add_generation_prompt).ids())

    def encode_chat(
        self, messages: Sequence[Message], *, documents: Sequence[Document] = (), add_generation_prompt: bool = True
    ) -> EncodedChat:
        """Encodes as `render_chat`, with each token's owner: a message, a document, or the template."""
        return self._chat.encode(tuple(messages), tuple(documents), add_generation_prompt, self._memory)

    def chat_tokens(self, messages: Sequence[Message], *, documents: Sequence[Document] = ()) -> int:
        """Returns the number of ids of `render_chat` without making a list. Raises as `encode_chat`."""
        return self._chat.count(tuple(messages), tuple(documents), self._memory)

    def for_turns(self) -> Tokenizer:
        """Returns the tokenizer for `turn_tokens` of such chats. What a chat has once costs next to nothing in it: in
        place of all tools there is a short one, and long variables are left out."""
        tools = (_SHORT_TOOL,) if self._options.tools else ()
        variables = (each for each in self._options.variables if len(str(each[1])) <= _SHORT_VARIABLE)
        return self.with_options(replace(self._options, tools=tools, variables=tuple(variables)))

    def turn_tokens(self, turn: Sequence[Message], *, is_last: bool = False) -> int:
        """Returns how many tokens a turn takes in a chat, as the template writes it: before other turns, or with
        `is_last` as the last one. Renders each turn once, and remembers its digest. Estimates where the template
        refuses the turn alone."""
        key = b"turn" + digest_of(repr((is_last, self._options, turn)))
        return self._remembered(key, lambda: self._turn(turn, is_last))

    def _turn(self, turn: Sequence[Message], is_last: bool) -> int:
        try:
            if not is_last:
                return max(0, self.chat_tokens((*turn, QUESTION)) - self.probes.question_tokens)
            without = self.probes.question_tokens - self.message_tokens(QUESTION)
            return max(0, self.chat_tokens(turn) - without) if turn else 0
        except InvalidRequest:
            return sum(map(self.message_tokens, turn))

    def message_tokens(self, message: Message) -> int:
        """Estimates a message's tokens in a chat, including the template's text around it. Counts its texts once."""
        return sum(map(self.text_tokens, message.texts)) + self.probes.around * (1 + len(message.tool_calls))

    def text_tokens(self, text: str) -> int:
        """Returns the number of tokens of a text alone. It remembers the digest, not the text."""
        return self._remembered(digest_of(text), lambda: len(self._vocabulary.encode(text)))

    def _remembered(self, key: bytes, count: Callable[[], int]) -> int:
        known = self._counted.get(key)
        if known is None:
            known = count()
            self._counted[key] = known
        return known

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of ids. Unfinished characters become U+FFFD. Unknown ids have no text."""
        return self._vocabulary.decode(ids, skip_special_tokens=skip_special_tokens)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Returns the text that each token adds when all are decoded, control tokens shown: together the decode of all.
        A token that ends inside a character adds nothing, the one that completes it the character."""
        return self._vocabulary.token_texts(ids)

    def text_stream(
        self, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset(), inside: bool = False
    ) -> TextStream:
        """Returns the incremental form of `decode`, for one sequence. The control tokens `shown` are not left out.
        `inside`: a text stands before it, so that its first token keeps its blank."""
        return self._vocabulary.text_stream(skip_special_tokens, shown, inside)

    def token(self, token_id: int) -> str | None:
        """Returns the vocabulary's own writing of a token; None for an unknown id."""
        return self._vocabulary.token(token_id)

    def token_text(self, token_id: int) -> str:
        """Returns a token's text in the middle of an answer, control tokens shown; empty for an unknown id."""
        return self._vocabulary.token_text(token_id)

    def text_bytes(self, token_id: int) -> bytes | None:
        """Returns the bytes of `token_text`, exact where the token is a part of a character; None where they are not
        known."""
        return self._vocabulary.text_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._vocabulary.special

    def controls_among(self, texts: Sequence[str]) -> dict[int, str]:
        """Returns those of the texts that are a control token, by its id."""
        found = ((self.id_of(text), text) for text in texts)
        return {id: text for id, text in found if id is not None and self.is_special(id)}
