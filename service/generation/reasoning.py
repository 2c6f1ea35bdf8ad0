"""Reasoning of one request at one version: the variables of its template that the request asks for, and a grammar that
leaves the reasoning free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from service.deployments.deployment import Deployment
from service.errors import InvalidRequest, UnsupportedField
from service.generation.readers import reasoning_marks, reasoning_of
from service.generation.request import GenerationRequest
from service.text.reasoning import Start, form_of
from service.text.reasoning.use import SWITCHES
from service.text.template import RESERVED
from service.text.tokenizer import Tokenizer

Variable = tuple[str, str | int | float | bool | None]


def with_reasoning(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with the variables that its reasoning needs. Raises UnsupportedField for a variable that the
    template does not have and for reasoning that the version does not have, InvalidRequest for two values of one
    variable."""
    use, tokenizer = request.reasoning, deployment.tokenizer
    if use is None and not request.template_variables:
        return request
    given = dict(_known(request.template_variables, tokenizer))
    if use is not None:
        for name, value in use.variables(form_of(tokenizer.template_texts), tokenizer.template_variables).items():
            if given.setdefault(name, value) != value:
                raise InvalidRequest(
                    f"`{use.field}` and `chat_template_kwargs.{name}` ask for different things: send one of them",
                    param=use.field,
                )
    return replace(request, template_variables=tuple(sorted(given.items())))


def with_free_reasoning(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with a grammar that holds for the content alone, where the answer may begin with
    reasoning."""
    found = None if request.grammar is None else reasoning_of(request, deployment.tokenizer)
    if request.grammar is None or found is None:
        return request
    form, start = found
    ids = reasoning_marks(form, deployment.tokenizer)
    grammar = request.grammar.behind_reasoning(form.opening, form.closing, ids, start is Start.OPEN)
    return replace(request, grammar=grammar)


def _known(variables: tuple[Variable, ...], tokenizer: Tokenizer) -> Iterator[Variable]:
    """Yields the variables without those that ask for nothing."""
    reasons = form_of(tokenizer.template_texts) is not None
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
