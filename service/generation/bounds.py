"""This module checks the bounds of one request: token ids against the vocabulary, positions against the window and the
KV pool."""

from __future__ import annotations

from functools import partial

from service.context.budget import Budget, ContextOptions
from service.context.prompt import Ids, Prompt, build_prompt
from service.deployments.deployment import Deployment
from service.errors import ContextOverflow, InvalidRequest, UnsupportedField
from service.generation.rendering import characters, in_thread, rendered
from service.generation.request import GenerationRequest


async def build(request: GenerationRequest, deployment: Deployment) -> Prompt:
    """Returns the prompt's ids and receipt. A long text is tokenised in a thread, and so is a prompt that is inspected,
    whose documents are searched or whose template is slow: the event loop goes on. Raises the errors of `build_prompt`,
    and an error for a feature that the version does not have."""
    refuse_unknown_tokens(request, min(deployment.tokenizer.vocab_size, deployment.manifest.vocab_size))
    if request.prompt_logprobs is not None and deployment.answer_window is not None:
        raise UnsupportedField(
            f"An encoder reads the prompt of {deployment.manifest.reference}, which therefore predicts none of its "
            "tokens; ask for the logprobs of the answer only."
        )
    refuse_embedding(request, deployment)
    refuse_outside_limits(request, deployment)
    is_long = characters(request) >= deployment.tokenizer.long_text
    context = request.context
    searches = context is not None and context.policy == "retrieve" and bool(request.documents)
    if is_long or searches or (context is not None and context.inspect):
        prompt = await in_thread(request, partial(_with_receipt, request, deployment))
    else:
        prompt = await rendered(request, deployment, partial(prompt_of, request, deployment))
    refuse_tokens_without_rows(prompt, deployment)
    return prompt


def _with_receipt(request: GenerationRequest, deployment: Deployment) -> Prompt:
    """Returns the prompt with its receipt already counted, and inspected where the request wants that: these, too, are
    work for a thread."""
    prompt = prompt_of(request, deployment)
    prompt.receipt  # noqa: B018
    prompt.inspection  # noqa: B018
    return prompt


def prompt_of(request: GenerationRequest, deployment: Deployment) -> Prompt:
    """Returns the prompt. Raises the errors of `build_prompt`."""
    return build_prompt(
        deployment.tokenizer.of(request.owner).with_options(request.chat_options),
        window_of(request, deployment),
        request.source,
        documents=request.documents,
        max_new_tokens=request.max_new_tokens,
        truncate=request.truncate,
        room=deployment.answer_room(0) if request.embedding and request.embedding.fits else None,
        context=request.context,
        answer_window=deployment.answer_window,
    )


def input_budget(request: GenerationRequest, deployment: Deployment) -> int:
    """Returns how many tokens the prompt may have before a policy cuts it. Raises as `window_of`."""
    options, window = request.context or ContextOptions(), window_of(request, deployment)
    return Budget(window, request.max_new_tokens, options, deployment.answer_window).limit


def refuse_embedding(request: GenerationRequest, deployment: Deployment) -> None:
    """Raises UnsupportedField for an embedding that the version cannot make, and InvalidRequest for more dimensions
    than it has."""
    embedding, info = request.embedding, deployment.engine.info
    if embedding is None or info is None:
        return
    if info.no_embeddings:
        raise UnsupportedField(
            f"{deployment.manifest.reference} makes no embeddings: {info.no_embeddings}. Name another model.",
            param="model",
        )
    if deployment.pooling.refusal and embedding.pooling is None:
        raise UnsupportedField(
            f"{deployment.manifest.reference} cannot make the embeddings of its author: {deployment.pooling.refusal}. "
            "Name another model, or choose a `pooling`.",
            param="model",
        )
    most = info.work.hidden
    if embedding.dimensions and most and embedding.dimensions > most:
        raise InvalidRequest(
            f"`dimensions` is {embedding.dimensions}; the vectors of {deployment.manifest.reference} have {most}: "
            "lower it or remove it",
            param="dimensions",
            dimensions=most,
        )


def refuse_outside_limits(request: GenerationRequest, deployment: Deployment) -> None:
    """Raises UnsupportedField for a sampling parameter that the version's engine cannot act on."""
    info = deployment.engine.info
    for limit in info.limits if info else ():
        value = getattr(request.sampling, limit.parameter)
        if not limit.least <= value <= limit.most:
            allowed = f"from {limit.least:g} to {limit.most:g}" if limit.least < limit.most else f"{limit.least:g}"
            raise UnsupportedField(
                f"`{limit.parameter}` is {value:g}; the engine {deployment.kind.name}, which serves "
                f"{deployment.manifest.reference}, takes {allowed}: change it, or name another model",
                param=limit.parameter,
            )


def window_of(request: GenerationRequest, deployment: Deployment) -> int:
    """Returns the window that the prompt is built for. Raises InvalidRequest where the client wants a larger one than
    the version has."""
    requested, window = request.max_window, deployment.window
    if requested is None:
        return window
    if requested > window:
        raise InvalidRequest(
            f"`max_window` is {requested}, and the window of {deployment.manifest.reference} has {window} tokens: "
            "lower it or remove it",
            param="max_window",
            fields=("max_window",),
            window=window,
        )
    return requested


def bounded_max_tokens(request: GenerationRequest, deployment: Deployment, prompt: Prompt) -> int:
    """Returns how many new tokens the KV pool has room for. Raises ContextOverflow when the requested number does not
    fit: `max_new_tokens`, what `reserve_output_tokens` wants kept free for it, or the least that it must have."""
    used = len(prompt.token_ids)
    room, requested = deployment.answer_room(used), prompt.max_new_tokens
    reserve = request.context.reserve_output_tokens if request.context else None
    is_open = request.max_new_tokens is None or reserve is not None
    least = min(requested, max(1, reserve or 0)) if is_open else requested
    if least <= room:
        _require_minimum(request, used, most := min(requested, room), is_shared=deployment.answer_window is None)
        return most
    raise ContextOverflow(
        f"The prompt has {used} tokens and {least} more are reserved for the answer, but the KV cache holds "
        f"{used + room} for one request: shorten the prompt, lower max_new_tokens, or give the server a larger "
        "DOSIRAK_KV_CACHE_BYTES",
        param="max_new_tokens",
        fields=("max_new_tokens",),
        window=used + room,
        needed_tokens=used + least,
        reserve=least,
        prompt_tokens=used,
    )


def _require_minimum(request: GenerationRequest, used: int, most: int, *, is_shared: bool) -> None:
    """Raises ContextOverflow where the answer must have more than the `most` tokens that are left for it. `is_shared`:
    the prompt of `used` tokens takes some of its room."""
    field, least, beside = request.min_tokens_field, request.sampling.min_tokens, used if is_shared else 0
    if least <= most:
        return
    change = "lower it, shorten the prompt, or raise context.reserve_output_tokens" if is_shared else "lower it"
    raise ContextOverflow(
        f"`{field}` is {least}, and {most} tokens are left for the answer behind the {used} of the prompt: {change}",
        param=field,
        window=beside + most,
        needed_tokens=beside + least,
        reserve=least,
        prompt_tokens=used,
    )


def refuse_tokens_without_rows(prompt: Prompt, deployment: Deployment) -> None:
    """Raises InvalidRequest for a text that holds a token which the tokenizer knows and the model's embedding does not:
    one that was added to the tokenizer alone."""
    tokenizer, rows = deployment.tokenizer, deployment.manifest.vocab_size
    if tokenizer.vocab_size > rows and (highest := max(prompt.token_ids)) >= rows:
        raise InvalidRequest(
            f"The prompt holds {tokenizer.token_text(highest)!r}, which is token {highest} of the tokenizer of "
            f"{deployment.manifest.reference}, but the model's token ids run from 0 to {rows - 1}: leave it out.",
            token_id=highest,
            vocab_size=rows,
        )


def refuse_unknown_tokens(request: GenerationRequest, vocab_size: int) -> None:
    """Raises InvalidRequest for a token id that the model does not have, in the prompt or in `logit_bias`."""
    biased = [token_id for token_id, _ in request.sampling.logit_bias]
    prompt = request.source if isinstance(request.source, Ids) else Ids(())
    named = (("logit_bias", biased), (prompt.name, prompt.token_ids), ("stop_token_ids", request.stop_token_ids))
    for param, ids in named:
        if not ids:
            continue
        low, high = min(ids), max(ids)  # at C's speed: there may be half a million
        if low < 0 or high >= vocab_size:
            raise InvalidRequest(
                f"{param}: {low if low < 0 else high} is not a token id of this model; "
                f"ids run from 0 to {vocab_size - 1}",
                param=param,
                vocab_size=vocab_size,
            )
