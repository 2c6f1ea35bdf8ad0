"""This dialect is OpenAI's chat completions: one request for each body; answers are messages and deltas of messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from service.api.openai.dialect import Models, OpenAISerialiser, requests_of
from service.api.openai.schemas import ChatBody
from service.api.shared.chat_schemas import called, tool_use_of, turn_of
from service.api.shared.serialiser import with_alternatives
from service.context.prompt import Chat
from service.generation.answer import Answer, Delta
from service.generation.delta import CallDelta, Token
from service.generation.output_sequence import OutputSequence
from service.generation.request import GenerationRequest
from service.text.reasoning import ReasoningUse
from service.text.tools import ToolUse

LISTED: Final[dict[str, Any]] = {
    **dict.fromkeys(("role", "content", "name", "tool_call_id"), True),
    "tool_calls": {"__all__": {"id": True, "type": True, "function": {"name", "arguments"}}},
}
"""What is listed of the messages of a stored completion."""


def parse(body: ChatBody, models: Models) -> list[GenerationRequest]:
    """Returns a list of one request. `models`: see `requests_of`."""
    messages, continues = tuple(each.message() for each in body.messages), bool(body.continue_final_message)
    return requests_of(
        body,
        [Chat(messages)],
        models,
        kind="chatcmpl",
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        documents=tuple(each.document() for each in body.documents or ()),
        tools=_tool_use(body),
        reasoning=None if body.reasoning_effort is None else reasoning_of(body.reasoning_effort),
        template_variables=tuple(sorted((body.chat_template_kwargs or {}).items())),
        turn=None if body.session_id is None else turn_of(body.session_id, messages, continues),
        continues=continues,
    )


def _tool_use(body: ChatBody) -> ToolUse | None:
    """Returns None where no tool can be called. Raises as `tool_use_of`."""
    return tool_use_of(body, {"min_tokens": body.min_tokens, "ignore_eos": body.ignore_eos})


def listed(body: ChatBody, id: str) -> list[dict[str, Any]]:
    """Returns the messages as they are stored and listed with the completion `id`."""
    messages = [each.model_dump(mode="json", exclude_none=True, include=LISTED) for each in body.messages]
    return [{"id": f"{id}-{at}", "content": None, **message} for at, message in enumerate(messages)]


def reasoning_of(effort: str, field: str = "reasoning_effort") -> ReasoningUse:
    """Returns the reasoning that OpenAI's word for an effort asks for."""
    is_off = effort == "none"
    return ReasoningUse(field, False if is_off else None, "" if is_off else effort)


class ChatSerialiser(OpenAISerialiser):
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def choice(self, answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
        content = sequence.text or (None if sequence.calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if sequence.reasoning:
            message["reasoning_content"] = sequence.reasoning
        if sequence.calls:
            message["tool_calls"] = [called(call.id, call.name, call.arguments) for call in sequence.calls]
        return {"message": message, "logprobs": _logprobs(answer, sequence.tokens)}

    def opening(self, delta: Delta) -> list[dict[str, Any]]:
        return [{"delta": {"role": "assistant", "content": ""}, "logprobs": None}]

    def added(self, delta: Delta) -> list[dict[str, Any]]:
        """Reasoning, then content, then what is added to calls. A token of the marks around them adds nothing that is
        shown, but its logprobs where they are wanted."""
        logprobs = _logprobs(delta.answer, [delta.token] if delta.token else [])
        shown: list[dict[str, Any]] = [{"tool_calls": [_call(each)]} for each in delta.calls]
        if delta.text or not delta.answer.is_parted or (logprobs and not shown and not delta.reasoning):
            shown.insert(0, {"content": delta.text})
        if delta.reasoning:
            shown.insert(0, {"reasoning_content": delta.reasoning})
        return [{"delta": each, "logprobs": logprobs if at == 0 else None} for at, each in enumerate(shown)]

    def nothing(self) -> dict[str, Any]:
        return {"delta": {}, "logprobs": None}


def _call(delta: CallDelta) -> dict[str, Any]:
    if delta.begun is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.begun.name, "arguments": ""}
    return {"index": delta.index, "id": delta.begun.id, "type": "function", "function": function}


def _logprobs(answer: Answer, tokens: Iterable[Token]) -> dict[str, Any] | None:
    if answer.request.logprobs is None:
        return None
    return {"content": [with_alternatives(answer.tokenizer, token) for token in tokens], "refusal": None}
