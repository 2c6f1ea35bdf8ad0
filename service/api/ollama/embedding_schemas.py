"""These wire models are the bodies of Ollama's two routes for embeddings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api.ollama.schemas import OPERATORS, OPERATORS_OPTIONS, KeepAlive, Name, OllamaOptions
from service.api.shared.embedding_schemas import MAX_INPUTS, Dimensions
from service.api.shared.schemas import Absent, Tokens, Wire

OF_TEXT: Final = tuple(
    name
    for name in dict.fromkeys((*OllamaOptions.model_fields, *OllamaOptions.later))
    if name not in ("num_ctx", *OPERATORS_OPTIONS)
)
"""Options that shape a generated text."""
NO_TEXT: Final = "shapes a generated text, and this route generates none: remove it"


def _inputs(value: Any) -> Any:
    match value:
        case None | "":
            return []
        case str():
            return [value]
        case [*texts] if len(texts) <= MAX_INPUTS and all(isinstance(each, str) and each for each in texts):
            return texts
    text = f"must be a text, or a list of at most {MAX_INPUTS} texts; none empty"
    raise PydanticCustomError("wrong_field", "{text}", {"text": text})


class OllamaEmbedOptions(Wire):
    later: ClassVar[dict[str, Absent]] = {**OPERATORS_OPTIONS, **dict.fromkeys(OF_TEXT, (None,))}
    reasons: ClassVar[dict[str, str]] = {
        **dict.fromkeys(OPERATORS_OPTIONS, OPERATORS),
        **dict.fromkeys(OF_TEXT, NO_TEXT),
    }
    num_ctx: Annotated[Tokens | None, Field(description="Window of each input, if less than the model's.")] = None


class OllamaVectorBody(Wire):
    """The fields of both routes."""

    model: Name
    options: OllamaEmbedOptions | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbedBody(OllamaVectorBody):
    """Without an input nothing is computed: the model is loaded, or with `keep_alive` 0 unloaded."""

    input: Annotated[
        list[str],
        BeforeValidator(_inputs),
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
        ),
    ] = Field(default=[])
    truncate: Annotated[bool | None, Field(description="Whether an input loses the end that does not fit.")] = None
    dimensions: Dimensions | None = None


class OllamaEmbeddingsBody(OllamaVectorBody):
    """Without a prompt nothing is computed: the model is loaded, or with `keep_alive` 0 unloaded."""

    prompt: str | None = None
