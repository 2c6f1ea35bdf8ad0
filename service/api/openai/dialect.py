"""OpenAI's two completion dialects share sampling fields, grammars, the envelope, usage, and errors in mid-stream."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from service.api.http.encoding import event
from service.api.http.errors import ErrorDialect, body_of
from service.api.openai.schemas import OpenAISampling
from service.api.shared.grammar_schemas import ResponseFormat, StructuredOutputs, refuse_beside
from service.api.shared.sampling import sampling_of
from service.api.shared.serialiser import Serialiser, finish_detail, guard_field
from service.context.prompt import Source
from service.engine.protocol.messages import FinishReason
from service.errors import DosirakError, InvalidRequest
from service.generation.answer import Answer, Delta
from service.generation.output_sequence import OutputSequence
from service.generation.request import GenerationRequest
from service.text.grammars import Grammar


def openai_grammar(body: OpenAISampling) -> Grammar | None:
    """Returns the grammar of `response_format`, `structured_outputs` or one of the `guided_*` fields. Raises
    InvalidRequest for two of them."""
    fields = [
        _response_format(body.response_format),
        body.structured_outputs and _structured(body.structured_outputs),
        None if body.guided_json is None else Grammar.of_json_schema(body.guided_json, "guided_json"),
        body.guided_regex and Grammar.of_regex(body.guided_regex, "guided_regex"),
        body.guided_choice and Grammar.of_choice(body.guided_choice, "guided_choice"),
        body.guided_grammar and Grammar.of_lark(body.guided_grammar, "guided_grammar"),
    ]
    grammars = [each for each in fields if isinstance(each, Grammar)]
    if len(grammars) > 1:
        first, second = grammars[0].field, grammars[1].field
        raise InvalidRequest(f"`{second}` cannot act beside `{first}`: send one of them", param=second)
    grammar = grammars[0] if grammars else None
    refuse_beside(grammar, min_tokens=body.min_tokens, ignore_eos=body.ignore_eos)
    return grammar


def _response_format(response_format: ResponseFormat | None) -> Grammar | None:
    if response_format is None or response_format.type == "text":
        return None
    if response_format.json_schema is not None:
        return Grammar.of_json_schema(response_format.json_schema.schema_, "response_format.json_schema.schema")
    if response_format.type == "regex":
        return Grammar.of_regex(str(response_format.value), "response_format.value")
    if response_format.value is not None:
        return Grammar.of_json_schema(response_format.value, "response_format.value")
    return Grammar.of_json_object("response_format")


def _structured(outputs: StructuredOutputs) -> Grammar:
    if outputs.json_ is not None:
        return Grammar.of_json_schema(outputs.json_, "structured_outputs.json")
    if outputs.regex:
        return Grammar.of_regex(outputs.regex, "structured_outputs.regex")
    if outputs.choice:
        return Grammar.of_choice(outputs.choice, "structured_outputs.choice")
    if outputs.grammar:
        return Grammar.of_lark(outputs.grammar, "structured_outputs.grammar")
    return Grammar.of_json_object("structured_outputs.json_object")


LAST: Final = "[DONE]"
DONE: Final = f"data: {LAST}\n\n".encode()
PLACEHOLDERS: Final = frozenset({"tgi", "dummy"})
"""Values that huggingface_hub's clients send as `model` when the address alone decides."""
FINISH_REASONS: Final = {FinishReason.DEADLINE: "length", FinishReason.ERROR: "length"}
"""OpenAI's word for an answer cut short, where OpenAI has no word for our reason."""
Models = Callable[[], Collection[str]]
"""Returns the names of the models on disk."""


def requests_of(
    body: OpenAISampling, sources: Sequence[Source], models: Models, *, kind: str, **more: Any
) -> list[GenerationRequest]:
    """Returns one request for each source. Each of several draws its own seed from the given one, as if it were sent
    alone. A placeholder that is none of `models` counts as no name."""
    n = body.n or 1
    grammar = openai_grammar(body)
    sampling = sampling_of(body, defaults={"temperature": 1.0}, min_tokens=body.min_tokens)
    model = named_model(body.model, models)
    fields: dict[str, Any] = {"best_of": n, **more}
    return [
        GenerationRequest(
            id=f"{kind}-{uuid.uuid4().hex}",
            source=source,
            model=model,
            **sampling,
            seed=body.seed,
            ignore_eos=bool(body.ignore_eos),
            max_new_tokens=body.new_tokens,
            context=body.context.options() if body.context else None,
            stop=tuple(body.stop or ()),
            grammar=grammar,
            include_stop=bool(body.include_stop_str_in_output),
            skip_special_tokens=body.skip_special_tokens is not False,
            n=n,
            priority=body.priority or 0,
            deadline_ms=body.deadline_ms,
            user=body.user or body.safety_identifier or "",
            cache_salt=body.cache_salt or "",
            stop_token_ids=tuple(body.stop_token_ids or ()),
            **fields,
        )
        for source in sources
    ]


def named_model(name: str | None, models: Models) -> str | None:
    """Returns the name; None for a placeholder that is none of `models`."""
    return None if name in PLACEHOLDERS and name not in models() else name


def finished(sequence: OutputSequence) -> dict[str, Any]:
    """Returns `finish_reason` in OpenAI's enumeration, and our own word as `finish_detail` where OpenAI has none."""
    reason = sequence.finish_reason
    if reason in FINISH_REASONS:
        return {"finish_reason": FINISH_REASONS[reason], **finish_detail(reason)}
    if reason is FinishReason.STOP and sequence.has_whole_calls:
        return {"finish_reason": "tool_calls"}
    return {"finish_reason": reason.value if reason else None}


class OpenAISerialiser(Serialiser):
    """Writes the envelope of objects and chunks, around the choices that a subclass writes."""

    ending = DONE
    kind: str
    chunk_kind: str

    def __init__(self, body: OpenAISampling, requests: Sequence[GenerationRequest]) -> None:
        self._id = requests[0].id
        self._order = {request.id: number for number, request in enumerate(requests)}
        self._answers: dict[str, Answer] = {}
        self._opened: set[int] = set()
        options = body.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Returns the body. With several prompts, each choice has its own receipt."""
        choices = []
        for number, answer in enumerate(answers):
            more = _extra_fields(answer) if len(answers) > 1 else {}
            for rank, sequence in enumerate(answer.best):
                index = number * answer.request.n + rank
                choices.append({"index": index, **self.choice(answer, sequence), **finished(sequence), **more})
        alone = _extra_fields(answers[0]) if len(answers) == 1 else {}
        return {**self._head(answers[0], self.kind), "choices": choices, "usage": _usage(answers), **alone}

    def events(self, delta: Delta) -> Iterable[bytes]:
        """Yields a token's chunk, with the opening chunk of its choice before it, and the end of its choice and of the
        stream after it, where they are due."""
        self._answers[delta.answer.request.id] = delta.answer
        index = self.index(delta)
        head = self._head(delta.answer, self.chunk_kind)
        usage: dict[str, Any] = {"usage": _usage(list(self._answers.values()))} if self._continuous_usage else {}
        if not usage and self._include_usage:
            usage = {"usage": None}
        shown = [] if index in self._opened else self.opening(delta)
        self._opened.add(index)
        if delta.token or delta.text or delta.calls or delta.reasoning:
            shown = [*shown, *self.added(delta)]
        for choice in shown:
            yield event({**head, "choices": [{"index": index, **choice, "finish_reason": None}], **usage})
        if delta.finish_reason is None:
            return
        more = _extra_fields(delta.answer) if delta.last else {}
        end = {"index": index, **self.nothing(), **finished(delta.sequence)}
        yield event({**head, "choices": [end], **usage, **more})
        if self._include_usage and self._all_ended():
            yield event({**head, "choices": [], "usage": _usage(list(self._answers.values()))})

    def failure(self, error: DosirakError, request_id: str) -> bytes:
        return event(body_of(error, request_id, ErrorDialect.OPENAI)) + DONE

    def index(self, delta: Delta) -> int:
        """Returns the choice's index: all sequences of the first prompt come first, then those of the second, …"""
        return self._order[delta.answer.request.id] * delta.answer.request.n + delta.sequence.number

    def _head(self, answer: Answer, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": answer.created,
            "model": answer.manifest.reference,
            "system_fingerprint": answer.manifest.short_digest,
        }

    def _all_ended(self) -> bool:
        ended = [each.finish_reason for answer in self._answers.values() for each in answer.sequences]
        return len(self._answers) == len(self._order) and None not in ended

    @abstractmethod
    def choice(self, answer: Answer, sequence: OutputSequence) -> dict[str, Any]:
        """Returns one finished sequence, without its index and finish reason."""

    @abstractmethod
    def opening(self, delta: Delta) -> list[dict[str, Any]]:
        """Returns what the first chunks of a choice show before its first token."""

    @abstractmethod
    def added(self, delta: Delta) -> list[dict[str, Any]]:
        """Returns what a token's chunks show."""

    @abstractmethod
    def nothing(self) -> dict[str, Any]:
        """Returns what the chunk at a choice's end shows."""


def _usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns sums over all prompts. Each prompt is counted once, however many sequences it has."""
    summed = Counter[str]()
    for answer in answers:
        summed.update(answer.usage())
    reasoning = summed.pop("reasoning_tokens", 0)
    return {
        **summed,
        "prompt_tokens_details": {"cached_tokens": summed["cached_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _extra_fields(answer: Answer) -> dict[str, Any]:
    """Returns our own fields."""
    return {
        "digest": answer.manifest.short_digest,
        "context": answer.context(),
        "timings": answer.timings(),
        **guard_field(answer),
    }
