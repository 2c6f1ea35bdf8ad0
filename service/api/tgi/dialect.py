"""The native dialect is TGI's body as a superset. It parses `/generate` and `regenerate`, and writes their answers; so
it does in Triton's words, where `text_input` replaces `inputs`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.api.http.encoding import event
from service.api.http.errors import ErrorDialect, body_of
from service.api.shared.chat_schemas import tool_use_of, turn_of
from service.api.shared.grammar_schemas import refuse_beside
from service.api.shared.sampling import Sampling, sampling_of
from service.api.shared.serialiser import Serialiser
from service.api.tgi import answers as tgi
from service.api.tgi.schemas import GenerateBody, GenerationFields, Parameters, RegenerateBody
from service.context.prompt import Chat, Ids, Source, Text
from service.errors import DosirakError, InvalidRequest, UnsupportedField
from service.generation.answer import Answer, Delta
from service.generation.request import CHANCE, Choices, GenerationRequest, SessionTurn
from service.settings import Settings
from service.text.grammars import Grammar


@dataclass(frozen=True, slots=True)
class Wording:
    """How errors speak of a body. `prefix` stands before the names of parameters. `unstreamed` says what to do for an
    answer in one piece."""

    prefix: str = "parameters."
    unstreamed: str = "send stream false"


NATIVE: Final = Wording()
ALWAYS_STREAMS: Final = Wording(unstreamed="send the request to /generate with stream false")
TRITON: Final = Wording(prefix="")


def native_grammar(parameters: Parameters, prefix: str) -> Grammar | None:
    """Returns the grammar of the parameters, whose names have the `prefix`."""
    fields = parameters.grammar
    if fields is None:
        return None
    field = f"{prefix}grammar.value"
    match fields.type, fields.value:
        case "regex", str(pattern):
            grammar = Grammar.of_regex(pattern, field)
        case "lark", str(text):
            grammar = Grammar.of_lark(text, field)
        case "choice", list(options):
            grammar = Grammar.of_choice(options, field)
        case "json_object", _:
            grammar = Grammar.of_json_object(f"{prefix}grammar")
        case "json_schema", {"schema": schema, **rest} if rest.keys() <= {"name", "description", "strict"}:
            grammar = Grammar.of_json_schema(schema, f"{field}.schema")
        case _, schema:
            grammar = Grammar.of_json_schema(schema, field)
    name, least = parameters.minimum
    refuse_beside(grammar, prefix, **{name: least}, ignore_eos=parameters.ignore_eos)
    return grammar


def parse(body: GenerateBody, settings: Settings, *, stream: bool, wording: Wording = NATIVE) -> GenerationRequest:
    """Returns the request of a body. Raises UnsupportedField for what a stream of one answer cannot do, InvalidRequest
    for a minimum of tokens above the default maximum."""
    turn, continues = None, body.continue_final_message
    if body.session_id is not None:
        turn = turn_of(body.session_id, tuple(each.message() for each in body.messages or ()), continues)
    return _request(
        body,
        settings,
        source=_source(body),
        stream=stream,
        wording=wording,
        turn=turn,
        continues=continues,
        model=body.reference,
        documents=tuple(each.document() for each in body.documents or ()),
        user=body.user or "",
    )


def parse_regenerate(body: RegenerateBody, session_id: str, settings: Settings) -> GenerationRequest:
    """Returns a request that answers the session's last question again: a turn without new messages, whose chat is the
    session's."""
    parameters = body.parameters
    ends = {"parameters.min_new_tokens": parameters.min_new_tokens, "parameters.ignore_eos": parameters.ignore_eos}
    turn, tools = SessionTurn(session=session_id), tool_use_of(body, ends)
    return _request(body, settings, source=Chat(()), stream=body.stream, turn=turn, tools=tools)


def _request(
    fields: GenerationFields,
    settings: Settings,
    *,
    source: Source,
    stream: bool,
    wording: Wording = NATIVE,
    **more: Any,
) -> GenerationRequest:
    parameters, prefix = fields.parameters, wording.prefix
    if stream:
        _refuse_in_streams(parameters, wording)
    _refuse_above_default(parameters, settings.default_max_new_tokens, prefix)
    choices = Choices(tuple(fields.choices)) if isinstance(fields, GenerateBody) and fields.choices else None
    n = len(choices.texts) if choices else parameters.n or 1
    return GenerationRequest(
        id=f"gen-{uuid.uuid4().hex}",
        source=source,
        **_sampling(parameters),
        min_tokens_field=f"{prefix}{parameters.minimum[0]}",
        seed=parameters.seed,
        ignore_eos=bool(parameters.ignore_eos),
        max_new_tokens=parameters.new_tokens or settings.default_max_new_tokens,
        truncate=parameters.truncate,
        context=fields.context.options() if fields.context else None,
        stop=tuple(parameters.stop or ()),
        grammar=native_grammar(parameters, prefix),
        include_stop=bool(parameters.include_stop),
        n=n,
        best_of=parameters.best_of or n,
        logprobs=parameters.top_n_tokens or (0 if stream or parameters.wants_details else None),
        prompt_logprobs=0 if parameters.decoder_input_details else None,
        choices=choices,
        priority=fields.priority,
        deadline_ms=fields.deadline_ms,
        **more,
    )


def _source(body: GenerateBody) -> Source:
    if body.messages is not None:
        return Chat(tuple(each.message() for each in body.messages))
    if body.input_ids is not None:
        return Ids(tuple(body.input_ids))
    return Text(body.inputs) if body.inputs is not None else Text(body.text_input or "", name="text_input")


def _refuse_above_default(parameters: Parameters, most: int, prefix: str) -> None:
    """Raises InvalidRequest for a minimum of tokens that the default maximum does not reach."""
    field, least = parameters.minimum
    if parameters.new_tokens is None and least > most:
        raise InvalidRequest(
            f"`{prefix}{field}` is {least}, and without max_new_tokens an answer has at most {most} tokens here: lower "
            "it, or send max_new_tokens as well",
            param=f"{prefix}{field}",
            default_max_new_tokens=most,
        )


def _refuse_in_streams(parameters: Parameters, wording: Wording) -> None:
    for field, is_set in (
        ("n", (parameters.n or 1) > 1),
        ("best_of", (parameters.best_of or 1) > 1),
        ("return_full_text", parameters.return_full_text),
        ("decoder_input_details", parameters.decoder_input_details),
    ):
        if is_set:
            name = f"{wording.prefix}{field}"
            raise UnsupportedField(f"`{name}` cannot act in a stream: remove it, or {wording.unstreamed}", param=name)


def _sampling(parameters: Parameters) -> Sampling:
    """Returns greedy sampling unless `Parameters.samples`, whatever the version's author wants. With sampling,
    `temperature` is 1 where nobody sets it, as in TGI; 0 stays greedy."""
    temperature = {"temperature": 1.0 if parameters.samples else 0.0}
    made = sampling_of(parameters, defaults=temperature, min_tokens=parameters.minimum[1])
    made["unset"] -= {CHANCE} if parameters.samples else {CHANCE, "temperature"}
    return made


class NativeSerialiser(Serialiser):
    """Writes TGI's shapes with our own fields around them. `prefix` stands before the text (`return_full_text`)."""

    def __init__(self, prefix: str = "", details: bool = False) -> None:
        self._prefix = prefix
        self._details = details

    @classmethod
    def of(cls, fields: GenerationFields) -> NativeSerialiser:
        prefix = fields.inputs or "" if isinstance(fields, GenerateBody) else ""
        return cls(prefix if fields.parameters.return_full_text else "", fields.parameters.wants_details)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        return tgi.answered(answer, self._prefix, self._details)

    def events(self, delta: Delta) -> Iterable[bytes]:
        return tgi.events(delta)

    def failure(self, error: DosirakError, request_id: str) -> bytes:
        return event(body_of(error, request_id, ErrorDialect.NATIVE), "error")


class TritonSerialiser(NativeSerialiser):
    """Writes Triton's answers. Each event has the text that its token added."""

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        return {**served_by(answer), "text_output": answer.best[0].text}

    def events(self, delta: Delta) -> Iterable[bytes]:
        yield event({**served_by(delta.answer), "text_output": delta.text})


def served_by(answer: Answer) -> dict[str, Any]:
    """Returns the version that answered, in the words of Triton and KServe."""
    return {"model_name": answer.manifest.name, "model_version": answer.manifest.version}
