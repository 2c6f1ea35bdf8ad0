"""This wire model is the body of OpenAI's embeddings, with vLLM's extras."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api.openai.schemas import SOURCES_SCHEMA, sources_of
from service.api.shared.embedding_schemas import MAX_INPUTS, Dimensions
from service.api.shared.schemas import MAX_TOKENS, DeadlineMs, ModelReference, Priority, RequestIdText, UserText, Wire
from service.context.prompt import Text

PoolingName = Annotated[
    Literal["mean", "last", "cls"],
    Field(description="How the hidden states become one vector, where it is not the version's own way."),
]


def _not_empty(sources: list[Any]) -> list[Any]:
    if any(isinstance(each, Text) and not each.text for each in sources):
        raise PydanticCustomError("wrong_field", "{text}", {"text": "must not hold an empty string"})
    return sources


class EmbeddingBody(Wire):
    """`truncate_prompt_tokens` keeps the last so many tokens of each input; -1 keeps as many from its beginning as the
    window has."""

    input: Annotated[
        list[Any],
        BeforeValidator(partial(sources_of, most=MAX_INPUTS)),
        AfterValidator(_not_empty),
        WithJsonSchema(SOURCES_SCHEMA),
    ]
    model: ModelReference | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None
    user: UserText | None = None
    pooling: PoolingName | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    priority: Priority | None = None
    deadline_ms: DeadlineMs | None = None
    request_id: RequestIdText | None = None
