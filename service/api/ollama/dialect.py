"""This dialect is Ollama's: one request for each body; answers are objects, and lines of JSON in a stream.

Ollama's grammars write no property that a schema does not name. JSON Schema allows any other one where
`additionalProperties` is absent, and a small model then goes on with properties of its own."""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from models.repository.disk.journal import timestamp
from service.api.http.encoding import NDJSON, line
from service.api.http.errors import ErrorDialect, body_of
from service.api.ollama.messages import messages_of
from service.api.ollama.schemas import OllamaBody, OllamaChatBody, OllamaGenerateBody, OllamaOptions
from service.api.shared.chat_schemas import use_of
from service.api.shared.sampling import Sampling, sampling_of
from service.api.shared.serialiser import Serialiser, finish_detail, guard_field, with_alternatives
from service.context.budget import ContextOptions
from service.context.policies import Policy
from service.context.prompt import Chat, Source, Text
from service.engine.protocol.messages import NEUTRAL, FinishReason
from service.errors import DosirakError
from service.generation.answer import Answer, Delta
from service.generation.delta import Call, Token
from service.generation.output_sequence import OutputSequence
from service.generation.request import GenerationRequest
from service.text.grammars import Grammar
from service.text.grammars.json_schema import LISTED_SCHEMAS, NAMED_SCHEMAS
from service.text.messages import Message
from service.text.reasoning import ReasoningUse

ONE: Final = frozenset({"additionalProperties", "items"})
OPEN: Final = frozenset({"$ref", "additionalProperties", "allOf", "anyOf", "oneOf", "patternProperties"})
"""Words beside `properties` that say more of an object's properties: such an object stays as it is."""


def closed(schema: Any) -> Any:
    """Returns the schema with `additionalProperties` false at every object that names its properties and says nothing
    of others. A schema that joins several by `allOf` stays as it is: each part would refuse what another part names."""
    return schema if _joins(schema) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    kept = {word: _value(word, value) for word, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.keys() & OPEN:
        kept["additionalProperties"] = False
    return kept


def _value(word: str, value: Any) -> Any:
    if word in LISTED_SCHEMAS and isinstance(value, list):
        return [_closed(each) for each in value]
    if word in NAMED_SCHEMAS and isinstance(value, dict):
        return {name: _closed(each) for name, each in value.items()}
    return _closed(value) if word in ONE else value


def _joins(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    parts = schema.get("allOf")
    return (isinstance(parts, list) and len(parts) > 1) or any(map(_joins, _schemas_in(schema)))


def _schemas_in(schema: dict[str, Any]) -> Iterator[Any]:
    for word, value in schema.items():
        if word in LISTED_SCHEMAS and isinstance(value, list):
            yield from value
        elif word in NAMED_SCHEMAS and isinstance(value, dict):
            yield from value.values()
        elif word in ONE:
            yield value


DEFAULTS: Final[dict[str, float]] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Ollama's defaults, as its documentation gives them; its others switch a field off."""
PENALTIES: Final = ("repetition_penalty", "frequency_penalty", "presence_penalty")
DONE_REASONS: Final = {FinishReason.STOP: "stop", FinishReason.CONTENT_FILTER: "stop"}
"""Ollama's word for a finish reason; for the others it is `length`."""


def parse_chat(body: OllamaChatBody) -> GenerationRequest:
    """Returns the request. As in Ollama, an answer goes on from an assistant's message at the end."""
    tools = use_of(tuple(each.tool() for each in body.tools or ()), "auto", None, is_parallel=True)
    messages = messages_of(body.messages or ())
    continues = bool(messages) and not messages[-1].tool_calls
    return replace(_request(body, Chat(messages)), tools=tools, continues=continues)


def parse_generate(body: OllamaGenerateBody) -> GenerationRequest:
    """Returns the request for a prompt: a chat of one question, or with `raw` the text itself."""
    prompt = body.prompt or ""
    if body.raw:
        return _request(body, Text(prompt, name="prompt"))
    system = (Message("system", body.system),) if body.system else ()
    return _request(body, Chat((*system, Message("user", prompt))))


def _request(body: OllamaBody, source: Source) -> GenerationRequest:
    options = body.options or OllamaOptions()
    return GenerationRequest(
        id=f"gen-{uuid.uuid4().hex}",
        source=source,
        model=body.model,
        **_sampling(options),
        seed=None if options.seed is None or options.seed < 0 else options.seed,
        max_new_tokens=None if options.num_predict == -1 else options.num_predict,
        max_window=options.num_ctx,
        context=None if body.truncate is None else ContextOptions(policy=_policy(body.truncate)),
        stop=tuple(options.stop or ()),
        grammar=_grammar(body.format),
        reasoning=_reasoning(body.think),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        keep_alive=body.keep_alive,
    )


def _reasoning(think: bool | str | None) -> ReasoningUse | None:
    if think is None:
        return None
    return ReasoningUse("think", effort=think) if isinstance(think, str) else ReasoningUse("think", think)


def _sampling(options: OllamaOptions) -> Sampling:
    """Returns the sampling with Ollama's defaults. Without a look back there is no penalty."""
    penalties: dict[str, Any] = {"repetition_penalty": options.repeat_penalty}
    if options.repeat_last_n == 0:
        penalties = {name: NEUTRAL[name] for name in PENALTIES}
    return sampling_of(options, defaults=DEFAULTS, **penalties)


def _policy(truncate: bool) -> Policy:
    return "window" if truncate else "refuse"


class OllamaSerialiser(Serialiser):
    """Writes the envelope of answers and lines around the text, which a subclass places. While a stream waits it sends
    a blank, which stands before the JSON of its first line."""

    media_type = NDJSON
    comment = b" "

    def __init__(self) -> None:
        self._open: Call | None = None
        self._content: list[str] = []

    @staticmethod
    @abstractmethod
    def text(text: str, thinking: str = "", calls: Sequence[Call] = ()) -> dict[str, Any]:
        """Returns the fields that hold a text of the model, what it wrote for itself, and its calls."""

    def watch(self, delta: Delta) -> None:
        for _ in self._texts(delta):
            pass

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        [sequence] = answer.best
        calls = [call for call in sequence.calls if call.is_whole]
        text = self.text("".join(self._content), sequence.reasoning, calls)
        return self._shown(answer, text, sequence.tokens, _end(answer, sequence))

    def events(self, delta: Delta) -> Iterable[bytes]:
        """Yields a line for each token that adds text or ends a call, or that has logprobs, and a last one without
        text."""
        answer = delta.answer
        for text, token in self._texts(delta):
            yield line(self._shown(answer, text, [token] if token else []))
        if delta.finish_reason is not None:
            yield line(self._shown(answer, self.text(""), (), _end(answer, delta.sequence)))

    def failure(self, error: DosirakError, request_id: str) -> bytes:
        return line(body_of(error, request_id, ErrorDialect.OLLAMA))

    def _texts(self, delta: Delta) -> Iterator[tuple[dict[str, Any], Token | None]]:
        """Yields the fields of what a delta adds, in its order, with its token where that adds text or has logprobs. A
        call has ended where text or another call comes behind it, or the answer ends."""
        token = delta.token
        if delta.text:
            yield from self._ended()
        if delta.text or delta.reasoning or (token and delta.answer.request.logprobs is not None):
            self._content.append(delta.text)
            yield self.text(delta.text, delta.reasoning), token
        for each in delta.calls:
            if each.begun is not None:
                yield from self._ended()
                self._open = each.begun
        if delta.finish_reason is not None:
            yield from self._ended()

    def _ended(self) -> Iterator[tuple[dict[str, Any], None]]:
        """Yields the call that was open; one that is not whole is a line of content."""
        call, self._open = self._open, None
        if call is not None and call.is_whole:
            yield self.text("", "", [call]), None
        elif call is not None:
            self._content.append(f"\n{call.as_text}" if any(self._content) else call.as_text)
            yield self.text(self._content[-1]), None

    @classmethod
    def without_text(cls, model: str, reason: Literal["load", "unload"]) -> dict[str, Any]:
        """Returns the answer to a request that generates nothing."""
        return {"model": model, "created_at": _now(), **cls.text(""), "done": True, "done_reason": reason}

    def _shown(
        self, answer: Answer, text: dict[str, Any], tokens: Sequence[Token], end: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        shown = {"model": answer.manifest.reference, "created_at": _now(), **text, "done": end is not None}
        if tokens and answer.request.logprobs is not None:
            shown["logprobs"] = [with_alternatives(answer.tokenizer, token) for token in tokens]
        return shown | (end or {})


class ChatSerialiser(OllamaSerialiser):
    @staticmethod
    def text(text: str, thinking: str = "", calls: Sequence[Call] = ()) -> dict[str, Any]:
        called = {"tool_calls": list(map(_called, calls))} if calls else {}
        return {"message": {"role": "assistant", "content": text, **_thinking(thinking), **called}}


class GenerateSerialiser(OllamaSerialiser):
    @staticmethod
    def text(text: str, thinking: str = "", calls: Sequence[Call] = ()) -> dict[str, Any]:
        return {"response": text, **_thinking(thinking)}


def _called(call: Call) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": json.loads(call.arguments)}}


def _thinking(text: str) -> dict[str, str]:
    return {"thinking": text} if text else {}


def _now() -> str:
    return timestamp(datetime.now(UTC))


def _end(answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
    """Returns why the answer ended and what it cost, with our own fields."""
    reason = sequence.finish_reason or FinishReason.ABORT
    usage = answer.usage()
    return {
        "done_reason": DONE_REASONS.get(reason, "length"),
        **finish_detail(reason),
        **_durations(answer),
        "prompt_eval_count": usage["prompt_tokens"],
        "eval_count": usage["completion_tokens"],
        "digest": answer.manifest.short_digest,
        "context_receipt": answer.context(),
        **guard_field(answer),
    }


def _durations(answer: Answer) -> dict[str, int]:
    """Returns nanoseconds. They lie so: total is from the request's arrival to its last token.

        arrival ── load ──▶ admitted ── queue ──▶ first step ── prompt_eval ──▶ prompt computed ── eval ──▶ last token

    What an engine does not measure counts as evaluation of the prompt; an answer without a token has none of them.
    """
    arrival, first, last = answer.request.arrival, answer.first_at, answer.last_at
    if first is None or last is None:
        return {}
    begun = answer.admitted_at if answer.queue_seconds is None else arrival + answer.queue_seconds
    computed = first if answer.prefill_seconds is None else begun + answer.prefill_seconds
    return {
        "total_duration": nanoseconds(last - arrival),
        "load_duration": nanoseconds(answer.admitted_at - arrival),
        "prompt_eval_duration": nanoseconds(computed - begun),
        "eval_duration": nanoseconds(last - min(computed, first)),
    }


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _grammar(form: dict[str, Any] | str | None) -> Grammar | None:
    """Returns the grammar of Ollama's `format`: a schema, or "json" for any object."""
    if isinstance(form, dict):
        return Grammar.of_json_schema(closed(form), "format")
    return Grammar.of_json_object("format") if form else None
