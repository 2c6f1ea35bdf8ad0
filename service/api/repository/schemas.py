"""These wire models are the bodies about the model repository: imports, evaluations, aliases."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from models.manifest import Precision
from service.api.shared.chat_schemas import ReasoningParser, ToolParser
from service.api.shared.schemas import Wire

Reason = Annotated[str, Field(max_length=1000)]
LONGEST_VERSION = 63


def _as_text(value: Any) -> Any:
    """Returns "2" for 2. A float stays one, and is refused: 1.10 as a number keeps only 1.1."""
    return str(value) if type(value) is int else value


Version = Annotated[
    str,
    BeforeValidator(_as_text),
    Field(min_length=1, max_length=LONGEST_VERSION),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1, "maxLength": LONGEST_VERSION}, {"type": "integer", "minimum": 0}]}
    ),
]
"""A version of a model; a whole number may be a JSON number."""
Effort = Literal["none", "quick", "full"]


class ImportBody(Wire):
    """`source` is a directory, archive or GGUF file on the server's machine, a hub id, or a BentoML store tag. For a
    PEFT adapter `adapter_of` names its base version. The precision is `file` unless given for a GGUF file whose blocks
    are computed as they are, and `bf16` for other sources."""

    source: Annotated[str, Field(min_length=1, max_length=4096)]
    precision: Precision | None = None
    version: Version | None = None
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    adapter_of: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    evaluate: Effort = "quick"


class QuantizeBody(Wire):
    """`group_size` is the number of weights that share a scale in `int4`, 32 unless given."""

    precision: Literal["int8", "int8-weight", "llm-int8", "int4"] = "int8"
    group_size: Literal[32, 128] | None = None
    evaluate: Effort = "quick"


class ParsersBody(Wire):
    """How the version's answers are read, in place of what its chat template tells. null: by the template again;
    "none": not at all. A field that is not sent stays as it is."""

    reasoning_parser: ReasoningParser | None = None
    tool_parser: ToolParser | None = None


class EvaluateBody(Wire):
    effort: Literal["quick", "full"] = "quick"


class AliasBody(Wire):
    version: Version
    reason: Reason = ""
    override: bool = False


class ReasonBody(Wire):
    reason: Reason = ""


class CandidateBody(Wire):
    """The promotion of a rollout's candidate."""

    reason: Reason = ""
    override: bool = False


class RolloutLimitsBody(Wire):
    error_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    ttft_p95_ratio: Annotated[float, Field(gt=0)] | None = None
    min_requests: Annotated[int, Field(ge=1, le=10_000)] | None = None


class RolloutBody(Wire):
    """`weight` is in percent; 0 with `shadow` compares answers and routes no request to the candidate. Where a rollout
    of the candidate runs, `sticky`, `shadow` and each of `guards` that is not sent stays as it is."""

    candidate: Version
    weight: Annotated[float, Field(ge=0, le=100)]
    sticky: bool = True
    shadow: bool = False
    guards: RolloutLimitsBody | None = None
    override: bool = False
