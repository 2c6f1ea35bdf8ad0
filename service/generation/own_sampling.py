"""A version's own sampling stands where a request leaves parameters open, as in vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from models.checkpoint.generation_defaults import PENALTIES, GenerationDefaults
from service.deployments.deployment import Deployment
from service.engine.protocol.messages import MIN_TEMPERATURE, SamplingParams
from service.generation.request import CHANCE, GenerationRequest

FORBIDDEN: Final = -1e4
"""What is added to the logit of a token that no answer has: the most that the engine takes."""


def with_own_sampling(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with the version's values for what its client left open, and a note that names them. A given
    value stays, also one that switches a parameter off, and so does a given bias. A value that the version's engine
    cannot act on is named and left out. Choices are not sampled."""
    if request.choices is not None:
        return request
    own = deployment.generation
    acting = _acting(request, own)
    refused = dict(_refused(acting, deployment))
    values = {name: value for name, value in acting.items() if name not in refused}
    bias = _bias(request.sampling, own, deployment.manifest.vocab_size) if request.unset else ()
    if not acting and not bias:
        return request
    sampling = replace(request.sampling, **values, logit_bias=(*request.sampling.logit_bias, *bias))
    return replace(request, sampling=sampling, notes=(*request.notes, _note(values, len(bias), refused)))


def _acting(request: GenerationRequest, own: GenerationDefaults) -> dict[str, Any]:
    """Returns what acts of the author's values: without chance, nothing that shapes it."""
    values: dict[str, Any] = {name: value for name, value in own.sampling.items() if name in request.unset}
    if own.is_greedy and CHANCE in request.unset:
        values["temperature"] = 0.0
    if values.get("temperature", request.sampling.temperature) < MIN_TEMPERATURE:
        return {name: value for name, value in values.items() if name in PENALTIES or name == "temperature"}
    return values


def _refused(values: Mapping[str, Any], deployment: Deployment) -> Iterator[tuple[str, Any]]:
    for limit in deployment.engine.info.limits if deployment.engine.info else ():
        value = values.get(limit.parameter)
        if value is not None and not limit.least <= value <= limit.most:
            yield limit.parameter, value


def _bias(sampling: SamplingParams, own: GenerationDefaults, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biased = {token_id for token_id, _ in sampling.logit_bias}
    return tuple((id, FORBIDDEN) for id in own.suppressed if id not in biased and id < vocab_size)


def _note(values: Mapping[str, Any], suppressed: int, refused: Mapping[str, Any]) -> str:
    parts = [f"{name} {value:g}" for name, value in values.items()]
    parts += [f"{suppressed} suppressed tokens"] if suppressed else []
    left_out = [f"{name} {value:g}, which its engine does not take" for name, value in refused.items()]
    parts += [f"but not {', '.join(left_out)}"] if left_out else []
    return f"sampling by the version's generation_config.json: {', '.join(parts)}"
