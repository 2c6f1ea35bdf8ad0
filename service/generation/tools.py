"""Tools of one request at one version: the format of its calls, and the grammar that forces them."""

from __future__ import annotations

from dataclasses import replace

from service.deployments.deployment import Deployment
from service.errors import UnsupportedField
from service.generation.request import GenerationRequest
from service.text.tokenizer import Tokenizer
from service.text.tools import ToolFormat, format_of
from service.text.tools.formats import PYTHON_TAG


def with_forced_calls(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with the grammar of its calls, where calls are forced, strict or beside a grammar of its own.
    Raises UnsupportedField for a version whose template places no tools, or whose calls cannot be read."""
    use = request.tools
    if use is None:
        return request
    tokenizer = deployment.tokenizer
    form = format_of(tokenizer.template_texts)
    check_placed(tokenizer.with_options(request.chat_options), deployment)
    if not use.is_forced and request.grammar is None:
        if not use.is_strict:
            return request
        return replace(request, grammar=use.free_grammar(form, marks_of(form, tokenizer)))
    calls = use.grammar(form, marks_of(form, tokenizer))
    whole = calls if use.is_forced or request.grammar is None else request.grammar.or_else(calls)
    return replace(request, grammar=whole)


def check_placed(tokenizer: Tokenizer, deployment: Deployment) -> None:
    """Raises UnsupportedField where the template of the deployment does not place the tools of its tokenizer."""
    if not tokenizer.places_tools:
        raise UnsupportedField(
            f"`tools` cannot act: the chat template of {deployment.manifest.reference} places no tools; describe them "
            "in a message, or use a version whose template does",
            param="tools",
        )


def marks_of(form: ToolFormat, tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the control tokens among the texts around a call."""
    found = {text: tokenizer.id_of(text) for text in (form.opening, form.closing, PYTHON_TAG) if text}
    return {text: id for text, id in found.items() if id is not None and tokenizer.is_special(id)}
