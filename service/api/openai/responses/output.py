"""The output turns the deltas of an answer into OpenAI's items, and tells each step of them as an event.

    message         output_item.added  content_part.added  output_text.delta …  output_text.done  content_part.done
                    output_item.done
    reasoning       the same with reasoning_text for output_text
    function_call   output_item.added  function_call_arguments.delta …  function_call_arguments.done  output_item.done

One item is open at a time. A whole response is made of the same deltas, so its items are those of a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from service.api.openai.responses.items import id_of
from service.api.shared.serialiser import with_alternatives
from service.generation.answer import Delta
from service.generation.delta import CallDelta, Token
from service.text.arguments import is_object

Json = dict[str, Any]


class Output:
    def __init__(self, owner_id: str) -> None:
        """`owner_id` is that of the session's message that the answer becomes, or of the response."""
        self.items: list[Json] = []
        self._owner_id = owner_id
        self._open: Json | None = None
        self._held: list[tuple[int, Token]] = []
        """Tokens that added nothing yet, by their index: they belong to the text that comes next, to the marks of a
        call, or to the reasoning with its marks."""

    def add(self, delta: Delta) -> Iterator[Json]:
        """Yields the events of a delta, without their numbers. The caller takes them all."""
        if delta.token is not None:
            self._held.append((delta.index, delta.token))
        ahead, behind = _parted(delta.calls)
        if delta.reasoning:
            yield from self._text("reasoning", delta.reasoning, [])
        for call in ahead:
            yield from self._called(call)
        if delta.text:
            yield from self._text("message", delta.text, _logprobs(delta, self._of_text(delta)))
        for call in behind:
            yield from self._called(call)
        if delta.calls or delta.reasoning:
            self._held = []

    def end(self, delta: Delta, status: str) -> Iterator[Json]:
        """Yields the events of the answer's end. An answer without text and calls has an empty message; one that ends
        inside its reasoning has it behind that."""
        if not any(item["type"] != "reasoning" for item in self.items):
            yield from self._close(status)
            yield from self._begin("message")
        if self._open is not None and self._open["type"] == "message":
            behind = [token for index, token in self._held if index >= delta.sequence.reasoning_tokens]
            self._open["content"][0].get("logprobs", []).extend(_logprobs(delta, behind))
        yield from self._close(status)

    def shown(self) -> list[Json]:
        return [_copy(item) for item in self.items]

    def _text(self, kind: str, text: str, logprobs: list[Json]) -> Iterator[Json]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            yield from self._begin(kind)
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        fields: Json = {"delta": text}
        if kind == "message":
            part["logprobs"] += logprobs
            fields["logprobs"] = logprobs
        yield self._event(f"{part['type']}.delta", content_index=0, **fields)

    def _called(self, call: CallDelta) -> Iterator[Json]:
        if call.begun is not None:
            yield from self._close()
            yield from self._begin("function_call", call_id=call.begun.id, name=call.begun.name, arguments="")
        if call.arguments and self._open is not None:
            self._open["arguments"] += call.arguments
            yield self._event("function_call_arguments.delta", delta=call.arguments)

    def _begin(self, kind: str, **more: Any) -> Iterator[Json]:
        item: Json = {"id": self._id(kind), "type": kind, "status": "in_progress", **more}
        if kind == "message":
            item |= {"role": "assistant", "content": []}
        if kind == "reasoning":
            item |= {"summary": [], "content": []}
        self.items.append(item)
        self._open = item
        yield self._of_item("output_item.added")
        if kind == "message":
            item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        if kind == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": ""}]
        if kind != "function_call":
            yield self._event("content_part.added", content_index=0, part=_copy(item)["content"][0])

    def _id(self, kind: str) -> str:
        """Returns the id under which a conversation lists the item. Text behind a call is listed with the text before
        it, and has an id of its own here."""
        return id_of(kind, self._owner_id, sum(item["type"] == kind for item in self.items))

    def _close(self, status: str = "completed") -> Iterator[Json]:
        item = self._open
        if item is None:
            return
        item["status"] = status
        if item["type"] == "function_call":
            if not is_object(item["arguments"]):
                item["status"] = "incomplete"
            yield self._event("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            part = _copy(item)["content"][0]
            fields = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._event(f"{part['type']}.done", content_index=0, **fields)
            yield self._event("content_part.done", content_index=0, part=part)
        yield self._of_item("output_item.done")
        self._open = None

    def _event(self, kind: str, **more: Any) -> Json:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **more}

    def _of_item(self, kind: str) -> Json:
        assert self._open is not None
        return {"type": f"response.{kind}", "output_index": len(self.items) - 1, "item": _copy(self._open)}

    def _of_text(self, delta: Delta) -> list[Token]:
        """Returns the held tokens whose texts are the delta's, and always its own. What stands before them is of no
        text: marks, and blanks between parts."""
        held, self._held = [token for _, token in self._held], []
        rest, first = delta.text, len(held)
        while first and (held[first - 1] is delta.token or rest.endswith(held[first - 1].text)):
            first -= 1
            rest = _before(rest, held[first].text)
        return held[first:]


def _before(text: str, last: str) -> str:
    """Returns the text without what it ends with of a token's text `last`, whose own end may still be held back."""
    size = next(size for size in range(len(last), -1, -1) if text.endswith(last[:size]))
    return text[: len(text) - size]


def _logprobs(delta: Delta, tokens: Iterable[Token]) -> list[Json]:
    if delta.answer.request.logprobs is None:
        return []
    return [with_alternatives(delta.answer.tokenizer, token) for token in tokens]


def _parted(calls: tuple[CallDelta, ...]) -> tuple[tuple[CallDelta, ...], tuple[CallDelta, ...]]:
    """Returns what belongs to the open call, and the calls that begin behind the token's text."""
    begun = next((at for at, each in enumerate(calls) if each.begun is not None), len(calls))
    return calls[:begun], calls[begun:]


def _copy(item: Json) -> Json:
    """Returns the item as it is now: an event must not change with what comes after it."""
    if "content" not in item:
        return dict(item)
    parts = [{k: list(v) if isinstance(v, list) else v for k, v in part.items()} for part in item["content"]]
    return {**item, "content": parts}
