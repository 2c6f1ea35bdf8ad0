"""Features of a request that depend on the version: reasoning, tools, a grammar and choices, as one version does them.

Choices are texts of which a request wants the probabilities behind its prompt, instead of a text of the model's own:

    prompt ids | choice ids        logprob = Σ ln p(choice id | prompt, choice ids before it)
    prompt ids | choice ids        probability = e^logprob / Σ e^logprob of all choices

Nothing is sampled. The first choice computes the prompt; the others find it in the prefix cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from service.context.composition import nfc
from service.context.prompt import Chat
from service.deployments.deployment import Deployment
from service.errors import InvalidRequest, UnsupportedField
from service.generation.request import Choices, GenerationRequest
from service.text.messages import Message
from service.text.reasoning import SWITCHES, ReasoningForm, Start
from service.text.template import RESERVED
from service.text.tokenizer import Tokenizer
from service.text.tools import CallReader, Content, ToolFormat
from service.text.tools.described import CALLS_NOTE, NOTE
from service.text.tools.formats import FINAL, GENERIC
from service.text.tools.harmony import ChannelReader

_MARKS: Final = re.compile(r"<\|[^|]+\|>")
Variable = tuple[str, str | int | float | bool | None]


def at_version(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with what its reasoning, its tools, its choices and its grammar need at this version."""
    request = with_choices(with_forced_calls(with_reasoning(request, deployment), deployment), deployment)
    return with_begun_grammar(with_free_reasoning(request, deployment), deployment)


def with_reasoning(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with the variables that its reasoning needs. Raises UnsupportedField for a variable that the
    template does not have and for reasoning that the version does not have, InvalidRequest for two values of one
    variable."""
    use, tokenizer = request.reasoning, deployment.tokenizer
    if use is None and not request.template_variables:
        return request
    variables = dict(_known(request.template_variables, tokenizer))
    if use is not None:
        for name, value in use.variables(tokenizer.reasoning_form, tokenizer.template_variables).items():
            if variables.setdefault(name, value) != value:
                raise InvalidRequest(
                    f"`{use.field}` and `chat_template_kwargs.{name}` ask for different things: send one of them",
                    param=use.field,
                )
    return replace(request, template_variables=tuple(sorted(variables.items())))


def with_free_reasoning(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with a grammar that holds for the content alone, where the answer may begin with
    reasoning."""
    found = None if request.grammar is None else reasoning_of(request, deployment.tokenizer)
    if request.grammar is None or found is None:
        return request
    form, start = found
    ids = reasoning_marks(form, deployment.tokenizer)
    grammar = request.grammar.behind_reasoning(form.opening, form.closing, ids, start.is_open, form.lead)
    return replace(request, grammar=grammar)


def with_begun_grammar(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with a grammar that has taken in the text that the answer goes on from."""
    text = begun_text(request, deployment.tokenizer)
    if request.grammar is None or not text:
        return request
    form = deployment.tokenizer.reasoning_form
    if form is not None:
        text = text.rpartition(form.closing)[2].lstrip()
    return replace(request, grammar=replace(request.grammar, begun=text))


def begun_text(request: GenerationRequest, tokenizer: Tokenizer) -> str:
    """Returns the text that the answer goes on from, as the prompt has it; "" where there is none."""
    if request.begun is None:
        return ""
    text, _ = nfc(request.begun.content)
    return text.strip() if tokenizer.with_options(request.chat_options).probes.trims_open else text


def _known(variables: tuple[Variable, ...], tokenizer: Tokenizer) -> Iterator[Variable]:
    """Yields the variables without those that ask for nothing."""
    reasons = tokenizer.reasoning_form is not None
    for name, value in variables:
        if name in tokenizer.template_variables or name in RESERVED:  # those are refused with the tokens
            yield name, value
        elif value is not None and not (name in SWITCHES and value is False and not reasons):
            param = f"chat_template_kwargs.{name}"
            known = ", ".join(sorted(tokenizer.template_variables)) or "none"
            raise UnsupportedField(
                f"`{param}` cannot act: this version's template has no such variable (it has: {known}); remove it",
                param=param,
            )


def with_forced_calls(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with the grammar of its calls, where calls are forced, strict or beside a grammar of its own.
    Raises UnsupportedField for a version whose template places no tools, or whose calls cannot be read."""
    use, tokenizer = request.tools, deployment.tokenizer
    if use is None:
        if tokenizer.describes_calls and _have_calls(messages_of(request)):
            request = replace(request, notes=(*request.notes, CALLS_NOTE))
        return _in_channel(request, tokenizer)
    check_placed(tokenizer.with_options(request.chat_options), deployment)
    form = tokenizer.tool_format
    if use.is_parallel and not tokenizer.probes.takes_two_calls:
        use = replace(use, is_parallel=False)
        request = replace(request, tools=use)
    call_reader(form, request, tokenizer)
    if tokenizer.describes_tools:
        request = replace(request, notes=(*request.notes, NOTE))
    if not use.is_forced and request.grammar is None:
        may_end_anywhere = not request.sampling.min_tokens and not _text_stops(request, tokenizer)
        if not use.is_strict and not (form is GENERIC and may_end_anywhere):
            return request
        return replace(request, grammar=use.free_grammar(form, marks_of(form, tokenizer)))
    calls = use.grammar(form, marks_of(form, tokenizer))
    own = None if use.is_forced else _in_channel(request, tokenizer).grammar
    return replace(request, grammar=calls if own is None else own.or_else(calls))


def refuse_text_stops(request: GenerationRequest, tokenizer: Tokenizer) -> None:
    """Raises UnsupportedField for a stop token that is a part of texts, beside a grammar: where the text has the token,
    the answer could neither go on nor be whole."""
    if request.grammar is not None and (stops := _text_stops(request, tokenizer)):
        raise UnsupportedField(
            f"`stop_token_ids` cannot act beside `{request.grammar.field}`: {stops[0]} is the text "
            f"{tokenizer.token_text(stops[0])!r}; write it in `stop`, or remove it",
            param="stop_token_ids",
        )


def _text_stops(request: GenerationRequest, tokenizer: Tokenizer) -> list[int]:
    return [id for id in request.stop_token_ids if not tokenizer.is_special(id)]


def _in_channel(request: GenerationRequest, tokenizer: Tokenizer) -> GenerationRequest:
    """Returns the request with its grammar behind what this version writes before content."""
    form = tokenizer.known_tool_format
    if request.grammar is None or form is None or not form.has_channels or not isinstance(request.source, Chat):
        return request
    if request.begun is not None:  # the prompt ends inside of the content
        return request
    return replace(request, grammar=request.grammar.behind(FINAL, marks_of(form, tokenizer)))


def call_reader(form: ToolFormat, request: GenerationRequest, tokenizer: Tokenizer) -> CallReader:
    """Returns what reads one answer, behind the text that it goes on from. Raises UnsupportedField where that text may
    be the beginning of a call."""
    kind = ChannelReader if form.has_channels else CallReader
    reader, text = kind(form, request.tools.schemas if request.tools else {}), begun_text(request, tokenizer).rstrip()
    if request.begun is None:
        return reader
    pieces = reader.push(f"{FINAL if form.has_channels else ''}{text}")
    if "".join(piece.text for piece in pieces if isinstance(piece, Content)).rstrip() != text:
        raise UnsupportedField(
            "`messages` end with an assistant's message that begins a call of a tool, and no answer goes on from "
            "there: end the message before the call",
            param="messages",
        )
    return reader


def check_placed(tokenizer: Tokenizer, deployment: Deployment) -> None:
    """Raises UnsupportedField where the tools of the deployment's tokenizer reach no chat."""
    if not tokenizer.probes.places_tools:
        raise _not_placed(deployment)


def refuse_described(deployment: Deployment, messages: Sequence[Message], *, has_tools: bool) -> None:
    """Raises UnsupportedField for tools, and for earlier calls, that the version's template itself leaves out."""
    if has_tools and deployment.tokenizer.describes_tools:
        raise _not_placed(deployment)
    if deployment.tokenizer.describes_calls and _have_calls(messages):
        raise UnsupportedField(
            f"`messages` have calls of tools, and the chat template of {deployment.manifest.reference} places none; "
            "say in their content what was called and what came of it, or set DOSIRAK_GENERIC_TOOLS=true",
            param="messages",
        )


def messages_of(request: GenerationRequest) -> Sequence[Message]:
    return request.source.messages if isinstance(request.source, Chat) else ()


def _have_calls(messages: Sequence[Message]) -> bool:
    return any(message.tool_calls or message.role == "tool" for message in messages)


def _not_placed(deployment: Deployment) -> UnsupportedField:
    return UnsupportedField(
        f"`tools` cannot act: the chat template of {deployment.manifest.reference} places no tools; describe them in a "
        "message, use a version whose template does, or set DOSIRAK_GENERIC_TOOLS=true",
        param="tools",
    )


def marks_of(form: ToolFormat, tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the control tokens among the texts around a call."""
    return special_tokens(form.marks, tokenizer)


def with_choices(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with the tokens of its choices, and room for the longest. Raises UnsupportedField for a
    version whose encoder reads the prompt, and InvalidRequest for choices that cannot be told apart."""
    if request.choices is None:
        return request
    if deployment.answer_window is not None:
        raise UnsupportedField(
            f"`choices` cannot act: an encoder reads the prompt of {deployment.manifest.reference}; name a "
            "decoder-only version, or ask for the logprobs of an answer",
            param="choices",
        )
    tokenizer, texts = deployment.tokenizer, request.choices.texts
    token_ids = tuple(tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    _refuse_unusable(token_ids, deployment.manifest.vocab_size)
    return replace(request, choices=Choices(texts, token_ids), max_new_tokens=max(map(len, token_ids)))


def _refuse_unusable(choices: Sequence[tuple[int, ...]], vocab_size: int) -> None:
    for number, ids in enumerate(choices):
        if not ids or max(ids) >= vocab_size:
            what = "a token that the model does not have" if ids else "no token"
            raise InvalidRequest(f"choices[{number}] holds {what}: send another text", param=f"choices[{number}]")
    order = sorted(range(len(choices)), key=choices.__getitem__)
    for first, second in pairwise(order):
        if choices[second][: len(choices[first])] == choices[first]:
            raise InvalidRequest(
                f"choices[{first}] is how choices[{second}] begins, so that the probability of one holds the other's: "
                "end each with what follows it, such as a full stop",
                param=f"choices[{first}]",
            )


def reasoning_of(request: GenerationRequest, tokenizer: Tokenizer) -> tuple[ReasoningForm, Start] | None:
    """Returns the form of a reasoning part that the answer may have, and how far the prompt has begun it. `tokenizer`
    is the version's; the request's options are applied here."""
    form = tokenizer.reasoning_form
    if form is None or not isinstance(request.source, Chat) or not request.source.messages:
        return None
    probes, begun = tokenizer.with_options(request.chat_options).probes, request.begun
    if begun is not None and begun.content.strip():
        start = form.start_behind(begun.content)
    else:
        start = form.start(probes.opening_of(request.source.messages[-1].role))
    return None if start is Start.CLOSED else (form, start)


def reasoning_marks(form: ReasoningForm, tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the control tokens among the marks of a reasoning part."""
    texts = (form.opening, form.closing, *_MARKS.findall(form.opening + form.lead))
    return special_tokens(texts, tokenizer)


def special_tokens(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the ids of those texts that are control tokens."""
    found = {text: tokenizer.id_of(text) for text in texts}
    return {text: id for text, id in found.items() if id is not None and tokenizer.is_special(id)}
