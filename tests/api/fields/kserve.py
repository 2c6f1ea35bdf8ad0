"""This table says what the fields of the KServe v2 protocol and Triton's extensions do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from service.api.kserve import schemas as kserve
from tests.api.fields.cases import Case, Table, acts, refuses
from tests.api.fields.native import PARAMETERS, holds

BASE: Final = {"text_input": "hello", "max_tokens": 40}


REFUSED: Final = ("n", "details", "decoder_input_details", "top_n_tokens", "return_full_text", "adapter_id")


def _placed(case: Case, prefix: str) -> Case:
    """The case of a parameter of `/generate` in Triton's body, in `parameters` or beside it."""
    if case.field in REFUSED:
        return refuses(f"{prefix}{case.field}", case.value)
    if case.field == "truncate":
        return acts(f"{prefix}truncate", 2, "engine.ids", lambda ids: len(ids) == 2, text_input="a salmon, please")
    if case.field in ("max_new_tokens", "max_tokens"):
        return acts(f"{prefix}{case.field}", 3, "engine.max_tokens", max_tokens=None)
    inner: dict[str, Any] = {**case.beside.get("parameters", {})}
    beside = {"parameters": inner} if prefix and case.field.startswith("grammar") else inner
    return replace(
        case, field=f"{prefix}{case.field}", at=case.at.replace("generated_text", "text_output"), beside=beside
    )


TEXT: Final = Table(
    kserve.TextBody,
    "/v2/models/demo/generate",
    BASE,
    (
        *(_placed(case, prefix) for prefix in ("", "parameters.") for case in PARAMETERS),
        *(acts(name, 2, "engine.min_tokens") for name in ("min_tokens", "min_length")),
        acts("parameters.stop_words", ["하나"], "answer.text_output", "안녕하세요, 도시락 "),
        acts("id", "mine-1", "answer.id"),
        acts("text_input", "salmon", "engine.prompt", holds("salmon")),
        refuses("stream", True),
    ),
    is_flat=True,
)
PROMPT: Final = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hello"]}
INFER: Final = Table(
    kserve.InferBody,
    "/v2/models/demo/infer",
    {"inputs": [PROMPT], "outputs": [{"name": "text_output"}], "parameters": {"max_tokens": 40}},
    (
        acts("id", "mine-1", "answer.id"),
        acts("parameters.binary_data_output", True, "headers.content-type", "application/octet-stream"),
        refuses("inputs[0].name", 5),
        acts("inputs[0].shape", [1, 1], "answer.outputs.0.shape"),
        refuses("inputs[0].datatype", "TEXT"),
        acts("inputs[0].parameters.binary_data_size", 9, "status", 400),
        acts("inputs[0].data", ["salmon"], "engine.prompt", "salmon"),
        refuses("outputs[0].name", "logits"),
        acts("outputs[0].parameters.binary_data", True, "headers.content-type", "application/octet-stream"),
    ),
)
INDEX: Final = Table(
    kserve.IndexBody, "/v2/repository/index", {}, (acts("ready", True, "answer", lambda all_: len(all_) < 5),)
)
LOAD: Final = Table(kserve.LoadBody, "/v2/repository/models/demo/load", {}, ())
UNLOAD: Final = Table(kserve.UnloadBody, "/v2/repository/models/<loaded>/unload", {}, ())
TABLES: Final = (TEXT, INFER, INDEX, LOAD, UNLOAD)
