"""These models describe answers that hold vectors, of OpenAI's dialect."""

from __future__ import annotations

from typing import Literal

from service.api.shared.answer_schemas import Shown


class EmbeddingVector(Shown):
    """`embedding` holds fp32 numbers, as numbers or as base64 of their little-endian bytes."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Shown):
    prompt_tokens: int
    total_tokens: int


class Embeddings(Shown):
    """`data` has the order of the inputs. `digest`, `pooling` and `normalized` are our own."""

    object: Literal["list"]
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingUsage
    digest: str
    pooling: Literal["mean", "last", "cls"]
    normalized: bool
