"""Readers of one sequence's text: they part its reasoning, its content and its calls of tools."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.context.prompt import Chat
from service.generation.features import call_reader, marks_of, reasoning_marks, reasoning_of
from service.generation.request import GenerationRequest
from service.text.detokenizer import Boundary
from service.text.reasoning import ReasoningReader, Start
from service.text.tokenizer import Tokenizer
from service.text.tools import CallReader, Content, Piece, Thought, ToolFormat
from service.text.tools.harmony import ChannelBoundary


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text adds to each part."""

    reasoning: str
    pieces: list[Piece]


@dataclass(slots=True)
class Readers:
    """`boundary` reads the text before a guard, `reasoning` the text that goes out. `content` tells where stop strings
    are searched. `shown` are the control tokens whose texts the readers need."""

    calls: CallReader | None = None
    boundary: ReasoningReader | None = None
    reasoning: ReasoningReader | None = None
    content: Boundary | None = None
    shown: frozenset[int] = field(default_factory=frozenset)
    _has_reasoning: bool = False

    def read(self, text: str, is_last: bool, is_cut: bool) -> Reading:
        """`is_cut`: a limit has cut the answer behind this text."""
        reasoning = ""
        if self.reasoning is not None:
            parted = self.reasoning.push(text)
            if is_last:
                parted += self.reasoning.finish(is_cut)
            reasoning, text = parted.reasoning, parted.content
        if self.calls is None:
            return Reading(reasoning, [Content(text)])
        pieces = self.calls.push(text)
        if is_last:
            pieces += self.calls.finish(is_cut)
        for piece in pieces:
            if isinstance(piece, Thought):
                is_next = piece.begins and (self._has_reasoning or reasoning)
                reasoning += f"\n{piece.text}" if is_next else piece.text
        self._has_reasoning = self._has_reasoning or bool(reasoning)
        return Reading(reasoning, pieces)


def readers_of(request: GenerationRequest, tokenizer: Tokenizer) -> Readers:
    """Returns what reads one sequence of an answer. Raw prompts have no parts."""
    readers = Readers()
    form = _tool_format(request, tokenizer)
    if form is not None:
        readers.shown |= frozenset(marks_of(form, tokenizer).values())
        readers.calls = call_reader(form, request, tokenizer)
    found = reasoning_of(request, tokenizer)
    if found is not None:
        form_, start = found
        readers.boundary, readers.reasoning = (
            ReasoningReader(form_, start.is_open, has_text=start is Start.BEGUN) for _ in range(2)
        )
        readers.shown |= frozenset(reasoning_marks(form_, tokenizer).values())
    readers.content = readers.boundary
    if form is not None and form.has_channels:
        readers.content = ChannelBoundary(form, readers.boundary)
    return readers


def _tool_format(request: GenerationRequest, tokenizer: Tokenizer) -> ToolFormat | None:
    """Returns the form of what has to be read: calls, and answers in channels whether they may have calls or not."""
    if request.tools is not None:
        return tokenizer.tool_format
    form = tokenizer.known_tool_format if isinstance(request.source, Chat) else None
    return form if form is not None and form.has_channels else None
