"""These models describe answers of the KServe v2 protocol and of Triton's extensions."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from service.api.shared.answer_schemas import Shown
from service.api.tgi.answer_schemas import TritonAnswer


class ServerMetadata(Shown):
    name: Literal["Dosirak"]
    version: str
    extensions: list[str]


class Live(Shown):
    live: Literal[True]


class Ready(Shown):
    ready: Literal[True]


class ModelReady(Shown):
    name: str
    ready: Literal[True]


class TensorMetadata(Shown):
    name: str
    datatype: Literal["BYTES"]
    shape: list[int]


class ModelMetadata(Shown):
    """`versions`: the one that the path names, else every version of the name."""

    name: str
    versions: list[str]
    platform: Literal["dosirak_safetensors"]
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TextAnswer(TritonAnswer):
    """The whole answer, or in a stream what an event adds to it. `id` is the request's, where it has one."""

    id: str | None = None


class BinarySize(Shown):
    binary_data_size: int


class OutputTensorShown(Shown):
    """`data` holds the text; in a binary answer `parameters` says how many bytes behind the JSON do."""

    name: Literal["text_output"]
    datatype: Literal["BYTES"]
    shape: list[int]
    data: list[str] | None = None
    parameters: BinarySize | None = None


class InferAnswer(Shown):
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensorShown]


class IndexEntry(Shown):
    """One version. `reason` says why it is not ready."""

    name: str
    version: str
    state: Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]
    reason: str


class RepositoryIndex(RootModel[list[IndexEntry]]):
    """Every version of every model."""


class Loaded(Shown):
    name: str
    version: str
    load: Literal[True]


class Unloaded(Shown):
    """The version takes no more requests; its answers in flight end first."""

    name: str
    version: str
    unload: Literal[True]
