"""Blocks turn the deltas of an answer into Anthropic's content blocks, and tell each step of them as an event.

a block: content_block_start ─▶ content_block_delta, … ─▶ content_block_stop

Thinking, text and each call are blocks of their own. Only one block is open at a time, so what a token adds to the open
call goes out before its text, and calls that it begins after it. A whole message is made of the same deltas, so its
blocks are those of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json

from service.api.anthropic.chat import shown_call
from service.generation.answer import Answer, Delta
from service.generation.delta import Call, CallDelta
from service.text.arguments import INVALID

Json = dict[str, Any]


class Blocks:
    def __init__(self, shows_thinking: bool = True) -> None:
        """Without `shows_thinking` its blocks have no text."""
        self._shows_thinking = shows_thinking
        self._blocks: list[tuple[Json, list[str]]] = []
        """Each with the texts that were added to it."""
        self._open = ""  # the kind of the open block

    def add(self, delta: Delta) -> Iterator[Json]:
        """Yields the events of a delta. The caller takes them all."""
        if delta.reasoning:
            yield from self._think(delta.answer, delta.reasoning)
        begun = next((at for at, each in enumerate(delta.calls) if each.begun is not None), len(delta.calls))
        yield from self._call(delta.calls[:begun])
        if delta.text:
            yield from self._text(delta.text)
        yield from self._call(delta.calls[begun:])
        if delta.finish_reason is not None:
            yield from self._close()

    def whole(self) -> list[Json]:
        return [_whole(block, "".join(texts)) for block, texts in self._blocks]

    def _think(self, answer: Answer, text: str) -> Iterator[Json]:
        if self._open != "thinking":
            yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            self._blocks[-1][0]["signature"] = _signature(answer)
        if self._shows_thinking:
            yield self._added("thinking_delta", "thinking", text)

    def _text(self, text: str) -> Iterator[Json]:
        if self._open != "text":
            yield from self._begin({"type": "text", "text": ""})
        yield self._added("text_delta", "text", text)

    def _call(self, deltas: Sequence[CallDelta]) -> Iterator[Json]:
        for each in deltas:
            if each.begun is not None:
                yield from self._begin(_tool_use(each.begun))
            if each.arguments:
                yield self._added("input_json_delta", "partial_json", each.arguments)

    def _begin(self, block: Json) -> Iterator[Json]:
        yield from self._close()
        self._open = block["type"]
        self._blocks.append((block, []))
        yield self._event("start", content_block=dict(block))

    def _added(self, kind: str, field: str, text: str) -> Json:
        self._blocks[-1][1].append(text)
        return self._event("delta", delta={"type": kind, field: text})

    def _close(self) -> Iterator[Json]:
        if self._open == "thinking":
            signature = self._blocks[-1][0]["signature"]
            yield self._event("delta", delta={"type": "signature_delta", "signature": signature})
        if self._open:
            self._open = ""
            yield self._event("stop")

    def _event(self, step: str, **fields: Any) -> Json:
        return {"type": f"content_block_{step}", "index": len(self._blocks) - 1, **fields}


def _signature(answer: Answer) -> str:
    """Returns which version thought. Clients that send thinking back want a signature; nothing here rests on it."""
    return answer.manifest.digest


def _tool_use(call: Call) -> Json:
    return {"type": "tool_use", "id": shown_call(call.id), "name": call.name, "input": {}}


def _whole(block: Json, text: str) -> Json:
    """Returns the block with all its text, which thinking and texts have under the name of their type."""
    kind = block["type"]
    return {**block, "input": _input(text)} if kind == "tool_use" else {**block, kind: text}


def _input(arguments: str) -> Json:
    """Returns the input as Anthropic's own client reads it of a stream: of one that a limit cut, what is whole."""
    try:
        value = from_json(arguments or "{}", allow_partial=True, allow_inf_nan=False)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {INVALID: arguments}
