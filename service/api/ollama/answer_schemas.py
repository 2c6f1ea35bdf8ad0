"""These models describe answers of Ollama's routes: whole answers, lines of streams, and models."""

from __future__ import annotations

from typing import Literal

from service.api.shared.answer_schemas import FinishDetail, GuardFinding, Object, Receipt, Shown, Time


class OllamaVersion(Shown):
    """The version of this software, not of Ollama."""

    version: str


class OllamaDetails(Shown):
    """`quantization_level` is the version's precision; `parent_model` the version that it was made from, if any."""

    parent_model: str
    format: Literal["safetensors"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Shown):
    """A version, or as `name:latest` what the bare name means now. `size` is in bytes, `digest` a sha256."""

    name: str
    model: str
    modified_at: Time
    size: int
    digest: str
    details: OllamaDetails
    capabilities: list[str]


class OllamaModels(Shown):
    models: list[OllamaModel]


class OllamaRunningModel(Shown):
    """A version in memory. `size` is what its engine holds, `size_vram` what of it a GPU holds. `expires_at` is when it
    is unloaded if no request comes; a hundred years ahead where it stays."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: Time
    size_vram: int
    context_length: int


class OllamaRunningModels(Shown):
    models: list[OllamaRunningModel]


class OllamaShown(Shown):
    """`model_info` has `general.architecture`, and numbers under the architecture's name."""

    license: str
    modified_at: Time
    details: OllamaDetails
    model_info: Object
    capabilities: list[str]


class OllamaToken(Shown):
    """`bytes` is null for a token that is a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class OllamaLogprob(OllamaToken):
    top_logprobs: list[OllamaToken]


class OllamaAnswer(Shown):
    """A whole answer, or one line of a stream: the last has `done` true, and what follows it here. Durations are in
    nanoseconds. `digest`, `context_receipt`, `guard` and `finish_detail` are our own."""

    model: str
    created_at: Time
    done: bool
    logprobs: list[OllamaLogprob] | None = None
    done_reason: Literal["stop", "length", "load", "unload"] | None = None
    finish_detail: FinishDetail | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    digest: str | None = None
    context_receipt: Receipt | None = None
    guard: list[GuardFinding] | None = None


class OllamaGenerateAnswer(OllamaAnswer):
    response: str
    thinking: str | None = None


class OllamaCalledFunction(Shown):
    name: str
    arguments: Object


class OllamaCalled(Shown):
    id: str
    function: OllamaCalledFunction


class OllamaSaid(Shown):
    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaCalled] | None = None


class OllamaChatAnswer(OllamaAnswer):
    message: OllamaSaid


class OllamaEmbedAnswer(Shown):
    """The vectors have the order of the inputs. Durations are in nanoseconds; `digest` is our own. Without an input
    there are neither."""

    model: str
    embeddings: list[list[float]]
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    digest: str | None = None


class OllamaEmbeddingsAnswer(Shown):
    embedding: list[float]
