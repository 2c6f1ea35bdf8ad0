"""A machine for each dialect reads a whole stream event by event, as a strict client does, and says what it told.

A machine raises AssertionError at the first event that its state does not allow. A stream ends in one way only: with
the dialect's end, or with the dialect's error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]


@dataclass
class Told:
    """What a client has at the end. `calls` are names and arguments."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    end: str = ""
    """The dialect's reason of the end; "error" for a stream that failed."""


def events_of(body: str) -> Iterator[tuple[str, str]]:
    """Yields (name, data) of each server-sent event; comments are passed over. Raises for anything else."""
    assert body.endswith("\n\n"), "an event without an end"
    for block in body.removesuffix("\n\n").split("\n\n"):
        lines = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
        fields = {name: value for name, _, value in lines}
        assert len(fields) == len(lines) and fields.keys() <= {"event", "data"}, block
        if "data" in fields:
            yield fields.get("event", ""), fields["data"]


def openai(body: str) -> Told:
    """Chat and text completions of one choice: chunks of one head, the role first, the finish reason once, then usage
    alone at most, and `[DONE]`."""
    told, head, is_chat, ended, usage = Told(), None, False, False, False
    *chunks, (_, last) = events_of(body)
    assert last == "[DONE]"
    for name, data in chunks:
        chunk = json.loads(data)
        assert not name and not usage and told.end != "error", chunk
        if "error" in chunk:
            told.end = "error"
            continue
        own = {key: chunk[key] for key in ("id", "object", "created", "model", "system_fingerprint")}
        head, is_first = head or own, head is None
        assert own == head
        if not chunk["choices"]:
            assert ended and chunk["usage"], "usage alone comes behind the end"
            usage = True
            continue
        [choice] = chunk["choices"]
        assert choice["index"] == 0 and not ended, "nothing comes behind the end of a choice"
        is_chat = own["object"] == "chat.completion.chunk"
        delta = choice["delta"] if is_chat else {"content": choice["text"]}
        assert not is_chat or (delta.pop("role", None) == "assistant") is is_first, "the role comes first, and once"
        _add(told, delta)
        if choice["finish_reason"] is not None:
            assert not any(delta.values())
            told.end, ended = choice["finish_reason"], True
    assert ended or told.end == "error"
    return told


def _add(told: Told, delta: Json) -> None:
    assert not (delta.get("reasoning_content") and (told.text or told.calls)), "reasoning comes before the content"
    told.reasoning += delta.get("reasoning_content") or ""
    told.text += delta.get("content") or ""
    for call in delta.get("tool_calls", ()):
        if "id" in call:
            assert call["index"] == len(told.calls) and call["id"] and call["type"] == "function"
            told.calls.append([call["function"]["name"], ""])
        assert call["index"] == len(told.calls) - 1, "the calls before are whole"
        told.calls[-1][1] += call["function"]["arguments"]


def anthropic(body: str) -> Told:
    """message_start, blocks one by one, message_delta, message_stop; pings anywhere; an error ends."""
    told, state, blocks, kind = Told(), "new", 0, ""
    for name, data in events_of(body):
        event = json.loads(data)
        assert name == event["type"] and state != "stopped", (state, event)
        match name, state:
            case "ping", _:
                pass
            case "error", _:
                told.end, state = "error", "stopped"
            case "message_start", "new":
                assert event["message"]["content"] == [] and event["message"]["stop_reason"] is None
                state = "between"
            case "content_block_start", "between":
                assert event["index"] == blocks
                kind, state = event["content_block"]["type"], "block"
                told.calls += [[event["content_block"]["name"], ""]] if kind == "tool_use" else []
            case "content_block_delta", "block" | "signed":
                assert event["index"] == blocks and state != "signed", "a signature is the last delta of its block"
                state = "signed" if _block_delta(told, kind, event["delta"]) else "block"
            case "content_block_stop", "block" | "signed":
                assert event["index"] == blocks and (kind == "thinking") is (state == "signed")
                blocks, state = blocks + 1, "between"
            case "message_delta", "between":
                told.end, state = event["delta"]["stop_reason"], "ending"
            case "message_stop", "ending":
                state = "stopped"
            case _:
                raise AssertionError((state, event))
    assert state == "stopped"
    return told


def _block_delta(told: Told, kind: str, delta: Json) -> bool:
    """Adds it, and returns whether it is a signature."""
    match kind, delta["type"]:
        case "text", "text_delta":
            told.text += delta["text"]
        case "thinking", "thinking_delta":
            assert not told.text and not told.calls
            told.reasoning += delta["thinking"]
        case "tool_use", "input_json_delta":
            told.calls[-1][1] += delta["partial_json"]
        case "thinking", "signature_delta":
            return True
        case _:
            raise AssertionError((kind, delta))
    return False


def responses(body: str) -> Told:
    """OpenAI's responses: created, in_progress, items one by one, each with its parts, and one last event. What was
    told piece by piece is what `done` events and the last response say."""
    state, items, open_item, part, text, error = "new", list[Json](), None, False, "", False
    last: Json = {}
    for number, (name, data) in enumerate(events_of(body)):
        event = json.loads(data)
        kind = name.removeprefix("response.")
        assert (event["type"], event["sequence_number"]) == (name, number) and state != "ended", event
        if "output_index" in event:
            assert event["output_index"] == len(items) - (kind != "output_item.added")
        if "item_id" in event:
            assert open_item is not None and event["item_id"] == open_item["id"], "a delta of an item that is not open"
        match kind, state:
            case "created", "new":
                state = "created"
            case "in_progress", "created":
                state = "running"
            case "error", "created" | "running":
                error = True
            case "failed", "created" | "running":
                assert error and event["response"]["error"], "an error is told before"
                state, last = "ended", event["response"]
            case "output_item.added", "running":
                assert open_item is None, "the item before is closed"
                open_item, text = event["item"], ""
                items.append(open_item)
            case "content_part.added", "running":
                assert open_item is not None and not part and event["part"]["text"] == ""
                part = True
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta", "running":
                assert part is (kind != "function_call_arguments.delta")
                text += event["delta"]
            case "output_text.done" | "reasoning_text.done", "running":
                assert part and event["text"] == text
            case "function_call_arguments.done", "running":
                assert event["arguments"] == text
            case "content_part.done", "running":
                assert part and event["part"]["text"] == text
                part = False
            case "output_item.done", "running":
                assert open_item is not None and not part and event["item"]["id"] == open_item["id"]
                assert event["item"]["status"] in ("completed", "incomplete")
                items[-1], open_item = event["item"], None
            case "completed" | "incomplete", "running":
                assert open_item is None and not error and event["response"]["output"] == items
                state, last = "ended", event["response"]
            case _:
                raise AssertionError((state, event))
    assert state == "ended"
    return _read(last, failed=error)


def _read(response: Json, failed: bool) -> Told:
    told = Told(end="error" if failed else response["status"])
    for item in response["output"]:
        match item["type"]:
            case "message":
                told.text += item["content"][0]["text"] if item["content"] else ""
            case "reasoning":
                told.reasoning += item["content"][0]["text"] if item["content"] else ""
            case "function_call":
                told.calls.append([item["name"], item["arguments"]])
    return told


def ollama(body: str) -> Told:
    """Lines of JSON: all but the last have `done` false; the last one has the reason, or is an error."""
    told = Told()
    assert body.endswith("\n")
    for line in body.strip().split("\n"):
        assert not told.end, "nothing comes behind the end"
        shown = json.loads(line)
        if "error" in shown:
            told.end = "error"
            continue
        message = shown.get("message", {"content": shown.get("response"), "thinking": shown.get("thinking")})
        assert not (message.get("thinking") and told.text)
        told.text += message["content"]
        told.reasoning += message.get("thinking") or ""
        assert shown["done"] is ("done_reason" in shown)
        told.end = shown.get("done_reason", "")
    assert told.end
    return told


def tgi(body: str) -> Told:
    """One event for a token, numbered from 1; the last one has the whole text, or is an error."""
    told, number = Told(), 0
    for name, data in events_of(body):
        event = json.loads(data)
        assert not told.end, "nothing comes behind the end"
        if name == "error":
            assert event["error"] and event["code"]
            told.end = "error"
            continue
        number += 1
        assert not name and event["index"] == number and (event["details"] is None) is (event["generated_text"] is None)
        told.text += event["token"]["text"]
        told.reasoning += event.get("reasoning", "")
        if event["details"] is not None:
            assert event["generated_text"] == told.text
            told.end = event["details"]["finish_reason"]
    assert told.end
    return told


def triton(body: str) -> Told:
    """One event for a token, with its text alone; an error is the last."""
    told = Told()
    for _, data in events_of(body):
        event = json.loads(data)
        assert told.end != "error", "nothing comes behind an error"
        told.text += event.get("text_output", "")
        told.end = "error" if "error" in event else "end"
    return told


ASK: Final = [{"role": "user", "content": "hello"}]
DIALECTS: Final[dict[str, tuple[Callable[[str], Told], Json, str]]] = {
    "/v1/chat/completions": (openai, {"messages": ASK, "stream_options": {"include_usage": True}}, "max_tokens"),
    "/v1/completions": (openai, {"prompt": "hello", "logprobs": 1}, "max_tokens"),
    "/v1/responses": (responses, {"input": "hello"}, "max_output_tokens"),
    "/v1/messages": (anthropic, {"messages": ASK, "max_tokens": 200}, "max_tokens"),
    "/api/chat": (ollama, {"messages": ASK}, "options.num_predict"),
    "/api/generate": (ollama, {"prompt": "hello"}, "options.num_predict"),
    "/generate": (tgi, {"messages": ASK}, "parameters.max_new_tokens"),
    "/generate_stream": (tgi, {"inputs": "hello"}, "parameters.max_new_tokens"),
    "/v2/models/demo/generate_stream": (triton, {"text_input": "hello"}, "max_tokens"),
}
"""The machine of each route, a body, and the field that bounds an answer."""
