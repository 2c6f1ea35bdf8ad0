"""Choices are texts of which a request wants the probabilities behind its prompt, instead of a text of the model's own.

    prompt ids | choice ids        logprob = Σ ln p(choice id | prompt, choice ids before it)
    prompt ids | choice ids        probability = e^logprob / Σ e^logprob of all choices

Nothing is sampled. The first choice computes the prompt; the others find it in the prefix cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from service.deployments.deployment import Deployment
from service.errors import GenerationFailed, InvalidRequest, UnsupportedField
from service.generation.answer import Answer
from service.generation.request import Choices, GenerationRequest


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """`logprobs` are those of its tokens, in nats; `logprob` is their sum."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    logprob: float
    probability: float


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


def scored(answer: Answer) -> list[ScoredChoice]:
    """Returns the choices of a finished answer, in the request's order. Raises GenerationFailed if the model gave no
    usable number."""
    choices = answer.request.choices or Choices(())
    told = [tuple(each.logprob for each in sequence.prompt_logprobs) for sequence in answer.sequences]
    sums = [math.fsum(logprobs) for logprobs in told]
    if not all(map(math.isfinite, sums)):
        raise GenerationFailed("The model gave no usable probabilities for this prompt; change the prompt or the model")
    highest = max(sums)
    weights = [math.exp(each - highest) for each in sums]
    total = math.fsum(weights)
    return [
        ScoredChoice(text, ids, logprobs, logprob, weight / total)
        for text, ids, logprobs, logprob, weight in zip(
            choices.texts, choices.token_ids, told, sums, weights, strict=True
        )
    ]
