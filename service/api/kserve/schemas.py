"""These wire models are the bodies of the KServe v2 protocol (Open Inference Protocol) with Triton's extensions:
generate, tensors, the model repository."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from service.api.shared.schemas import MAX_TOKENS, Absent, StopOrStops, Wire, unsupported, wrong
from service.api.tgi.schemas import GenerateBody, Parameters

TEXT_INPUT: Final = "text_input"
TEXT_OUTPUT: Final = "text_output"
OTHER_NAMES: Final = {
    "stop_words": "stop",
    "random_seed": "seed",
    "min_tokens": "min_new_tokens",
    "min_length": "min_new_tokens",
}
"""Names of Triton's backends for parameters, beside ours."""
NO_WORDS: Final[Absent] = (None, "", [], [""])
PLACELESS: Final = ("details", "decoder_input_details", "top_n_tokens", "return_full_text")
"""Parameters that add to an answer what Triton's shape has no place for."""
SHARED_MEMORY: Final[dict[str, Absent]] = dict.fromkeys(
    ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"), (None,)
)
MAX_TENSORS: Final = 64
MAX_DIMENSIONS: Final = 8

RequestId = Annotated[str, Field(max_length=256, description="Told again in the answer.")]
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]


class TextBody(Parameters):
    """The body of Triton's generate extension. A parameter may stand in `parameters` or beside it, once."""

    later: ClassVar[dict[str, Absent]] = {
        "adapter_id": (None,),
        "watermark": (None, False),
        "bad_words": NO_WORDS,
        "beam_width": (None, 1),
        "length_penalty": (None, 1, 1.0),
        "end_id": (None,),
        "pad_id": (None,),
        "exclude_input_in_output": (None, True),
        "return_log_probs": (None, False),
        "return_context_logits": (None, False),
        "return_generation_logits": (None, False),
        "sequence_id": (None, 0, ""),
        "sequence_start": (None, False),
        "sequence_end": (None, False),
        "priority": (None, 0),
        "timeout": (None, 0),
    }
    reasons: ClassVar[dict[str, str]] = {
        **Parameters.reasons,
        "adapter_id": "cannot act: the address names the model, and an adapter's version is one",
    }
    id: RequestId | None = None
    text_input: str
    parameters: Parameters | None = None
    stream: Annotated[bool | None, Field(description="With generate_stream: false sends one event.")] = None
    stop: Annotated[
        StopOrStops | None,
        Field(validation_alias=AliasChoices("stop", "stop_words"), description="Also `stop_words`."),
    ] = None
    seed: Annotated[
        Annotated[int, Field(ge=0, le=2**63 - 1)] | None,
        Field(validation_alias=AliasChoices("seed", "random_seed"), description="Also `random_seed`."),
    ] = None
    min_new_tokens: Annotated[
        Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None,
        Field(
            validation_alias=AliasChoices("min_new_tokens", "min_tokens", "min_length"),
            description="Also `min_tokens`, `min_length`.",
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, data: Any) -> Any:
        """Puts the members of `parameters` beside it. Leaves out stop words that are none."""
        if not isinstance(data, dict):
            return data
        inner, outer = data.get("parameters"), {name: value for name, value in data.items() if name != "parameters"}
        if not isinstance(inner, dict | None):
            raise wrong("parameters", "must be an object")
        for name in inner or {}:
            if name in ("id", TEXT_INPUT, "parameters"):
                raise wrong(f"parameters.{name}", "is no parameter: send it beside `parameters`")
            if name in outer:
                raise wrong(f"parameters.{name}", "stands beside `parameters` as well: send it once")
        lifted = {**outer, **(inner or {})}
        if any(lifted.get("stop_words") == nothing for nothing in NO_WORDS):
            lifted.pop("stop_words", None)
        _refuse_two_names(lifted)
        return lifted

    @model_validator(mode="after")
    def _fit_the_answer(self) -> TextBody:
        if (self.n or 1) > 1:
            raise unsupported("n", "must be 1: an answer in Triton's shape has one text")
        for name in PLACELESS:
            if getattr(self, name):
                raise unsupported(name, "adds what an answer in Triton's shape has no place for: ask /generate")
        return self

    def native(self, reference: str) -> GenerateBody:
        """Returns the native body of the same request to the model of that reference."""
        return GenerateBody(text_input=self.text_input, model=reference, parameters=self)


def _refuse_two_names(fields: dict[str, Any]) -> None:
    named = dict[str, str]()
    for name in fields:
        ours = OTHER_NAMES.get(name, name)
        if ours in named:
            raise wrong(name, f"is another name of {named[ours]}: send one of them")
        named[ours] = name


class InputTensorParameters(Wire):
    later: ClassVar[dict[str, Absent]] = SHARED_MEMORY
    binary_data_size: Annotated[int, Field(ge=0, description="Its bytes behind the JSON.")] | None = None


class InputTensor(Wire):
    """`text_input`, of one element, or a parameter of `/generate` by its name."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_DIMENSIONS)]
    datatype: Datatype
    parameters: InputTensorParameters | None = None
    data: list[Any] | None = None


class OutputTensorParameters(Wire):
    later: ClassVar[dict[str, Absent]] = {"classification": (None, 0), **SHARED_MEMORY}
    binary_data: bool | None = None


class OutputTensor(Wire):
    name: Literal["text_output"]
    parameters: OutputTensorParameters | None = None


class InferParameters(Wire):
    """`binary_data_output`: the answer's text as bytes behind the JSON. All others are parameters of `/generate`."""

    model_config = ConfigDict(extra="allow")
    binary_data_output: bool | None = None


class InferBody(Wire):
    """An inference request with the signature of `/generate`. With the header Inference-Header-Content-Length the
    elements of tensors may stand behind the JSON."""

    id: RequestId | None = None
    parameters: InferParameters | None = None
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=MAX_TENSORS)]
    outputs: Annotated[list[OutputTensor], Field(max_length=1)] | None = None

    @property
    def wants_binary(self) -> bool:
        """Returns whether the answer's text comes as bytes behind the JSON."""
        for output in self.outputs or ():
            if output.parameters is not None and output.parameters.binary_data is not None:
                return output.parameters.binary_data
        return bool(self.parameters and self.parameters.binary_data_output)


class IndexBody(Wire):
    """`ready` lists only what would answer at once."""

    ready: bool | None = None


class LoadParameters(Wire):
    """Triton loads with another configuration by these; a version here is immutable."""

    later: ClassVar[dict[str, Absent]] = {"config": (None,)}


class LoadBody(Wire):
    parameters: LoadParameters | None = None


class UnloadParameters(Wire):
    later: ClassVar[dict[str, Absent]] = {"unload_dependents": (None, False)}


class UnloadBody(Wire):
    parameters: UnloadParameters | None = None
