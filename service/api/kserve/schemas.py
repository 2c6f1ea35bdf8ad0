"""These wire models are the bodies of the KServe v2 protocol (Open Inference Protocol) with Triton's extensions:
generate, tensors, the model repository."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from service.api.shared.schemas import MAX_TOKENS, Absent, StopOrStops, Wire, wrong
from service.api.tgi.schemas import GenerateBody, Parameters, without_no_words

TEXT_INPUT: Final = "text_input"
TEXT_OUTPUT: Final = "text_output"
LEAST_NAMES: Final = ("min_new_tokens", "min_tokens", "min_length")
OTHER_NAMES: Final = {"stop_words": "stop", "random_seed": "seed", **dict.fromkeys(LEAST_NAMES[1:], LEAST_NAMES[0])}
"""Names of Triton's backends for parameters, beside ours."""
NO_WORDS: Final[Absent] = (None, "", [], [""])
SHARED_MEMORY: Final[dict[str, Absent]] = dict.fromkeys(
    ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"), (None,)
)
MAX_TENSORS: Final = 64
MAX_DIMENSIONS: Final = 8

RequestId = Annotated[str, Field(max_length=256, description="Told again in the answer.")]
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]


Least = Annotated[
    Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None, Field(description="Another name of `min_new_tokens`.")
]


class TextBody(Parameters):
    """The body of Triton's generate extension. A parameter may stand in `parameters` or beside it, once."""

    lifted: ClassVar[str] = "parameters"
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
    min_tokens: Least = None
    min_length: Least = None

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, data: Any) -> Any:
        """Puts the members of `parameters` beside it. Leaves out words that are none."""
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
        lifted = without_no_words({**outer, **(inner or {})})
        _refuse_two_names(lifted)
        return lifted

    @model_validator(mode="after")
    def _fit_the_answer(self) -> TextBody:
        self.fit_triton()
        return self

    @property
    def minimum(self) -> tuple[str, int]:
        given = [(name, getattr(self, name)) for name in LEAST_NAMES]
        return next(((name, least) for name, least in given if least is not None), (LEAST_NAMES[0], 0))

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
