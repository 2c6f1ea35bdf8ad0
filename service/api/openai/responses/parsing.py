"""A body of OpenAI's responses becomes a generation request."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from service.api.openai.chat import reasoning_of
from service.api.openai.responses.items import messages_of
from service.api.openai.responses.schemas import FunctionChoice, InputFields, JsonFormat, ResponseBody
from service.api.shared.chat_schemas import use_of
from service.api.shared.sampling import sampling_of
from service.context.budget import ContextOptions
from service.context.prompt import Chat
from service.generation.request import GenerationRequest, SessionTurn
from service.text.grammars import Grammar
from service.text.messages import Message
from service.text.tools import ToolUse


def parse(body: ResponseBody, before: tuple[Message, ...] = (), turn: SessionTurn | None = None) -> GenerationRequest:
    """Returns the request. `before` are the messages of the responses that it follows; `turn` is the one that it makes
    in its conversation."""
    return replace(
        parse_input(body, before, turn),
        **sampling_of(body, defaults={"temperature": 1.0}),
        seed=body.seed,
        max_new_tokens=body.max_output_tokens,
        logprobs=(body.top_logprobs or 0) if body.include else None,
        priority=body.priority or 0,
        deadline_ms=body.deadline_ms,
        user=body.user or body.safety_identifier or "",
        cache_salt=body.cache_salt or "",
    )


def parse_input(
    body: InputFields, before: tuple[Message, ...] = (), turn: SessionTurn | None = None
) -> GenerationRequest:
    """Returns a request with what the model reads. Its `instructions` stand first, and alone: those of earlier
    responses are not carried over."""
    system = (Message("system", body.instructions),) if body.instructions else ()
    effort = body.reasoning.effort if body.reasoning else None
    return GenerationRequest(
        id=f"resp_{uuid.uuid4().hex}",
        source=Chat((*system, *before, *(turn.messages if turn else messages_of(body.input or ())))),
        turn=turn,
        model=body.model,
        context=_context(body),
        documents=tuple(each.document() for each in body.documents or ()),
        grammar=_grammar(body.text.format if body.text else None),
        tools=_tools(body),
        reasoning=None if effort is None else reasoning_of(effort, "reasoning.effort"),
        template_variables=tuple(sorted((body.chat_template_kwargs or {}).items())),
    )


def _context(body: InputFields) -> ContextOptions | None:
    options = body.context.options() if body.context else None
    if body.truncation is None:
        return options
    return replace(options or ContextOptions(), policy="window" if body.truncation == "auto" else "refuse")


def _grammar(json_format: JsonFormat | None) -> Grammar | None:
    if json_format is None or json_format.type == "text":
        return None
    if json_format.type == "json_object":
        return Grammar.of_json_object("text.format")
    return Grammar.of_json_schema(json_format.schema_, "text.format.schema")


def _tools(body: InputFields) -> ToolUse | None:
    tools = tuple(each.tool() for each in body.tools or ())
    choice: Any = body.tool_choice or "auto"
    name = choice.name if isinstance(choice, FunctionChoice) else None
    kind = choice if name is None else "required"
    return use_of(tools, kind, name, is_parallel=body.parallel_tool_calls is not False)
