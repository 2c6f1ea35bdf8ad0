"""This dialect is the KServe v2 protocol with Triton's generate extension. The native parser makes the requests.
Tensors, with Triton's binary extension, are another spelling of a generate body.

Inference-Header-Content-Length: n
body:  n bytes of JSON │ bytes of the 1st binary tensor │ of the 2nd │ …       each little-endian, row by row
BYTES: length of an element, 4 bytes │ the element │ length of the next │ …"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from service.api.http.encoding import encode, event
from service.api.http.errors import ErrorDialect, body_of
from service.api.kserve.schemas import TEXT_INPUT, TEXT_OUTPUT, InferBody, InputTensor, TextBody
from service.api.tgi import dialect as native
from service.api.tgi.dialect import TritonSerialiser, served_by
from service.errors import DosirakError, InvalidRequest, UnsupportedField
from service.generation.answer import Answer, Delta
from service.generation.request import GenerationRequest
from service.settings import Settings


def parse(body: TextBody, reference: str, settings: Settings) -> GenerationRequest:
    """Returns the request of one whole answer. Raises UnsupportedField for a stream."""
    if body.stream:
        raise UnsupportedField("`stream` cannot act here: send the request to …/generate_stream", param="stream")
    return _parsed(body, reference, settings, stream=False)


def parse_stream(body: TextBody, reference: str, settings: Settings) -> GenerationRequest:
    """Returns the request of a stream; with `stream` false the stream is one event, of a whole answer. Raises
    UnsupportedField for what a stream of tokens cannot do."""
    return _parsed(body, reference, settings, stream=body.stream is not False)


def _parsed(body: TextBody, reference: str, settings: Settings, *, stream: bool) -> GenerationRequest:
    return native.parse(body.native(reference), settings, stream=stream, wording=native.TRITON)


class TextSerialiser(TritonSerialiser):
    """Writes Triton's answers with the request's own `id`. With `in_one_event` a stream has the whole answer as its one
    event, as Triton's backends do where `stream` is false."""

    def __init__(self, id: str | None, in_one_event: bool = False) -> None:
        super().__init__()
        self._id = {} if id is None else {"id": id}
        self._in_one_event = in_one_event

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return {**self._id, **super().whole(answers)}

    def events(self, delta: Delta) -> Iterable[bytes]:
        if not self._in_one_event:
            yield event({**self._id, **served_by(delta.answer), "text_output": delta.text})
        elif delta.last:
            yield event(self.whole([delta.answer]))

    def failure(self, error: DosirakError, request_id: str) -> bytes:
        return event(body_of(error, request_id, ErrorDialect.TRITON), "error")


Element = str | bool | int | float
LENGTH: Final = struct.Struct("<I")
CODES: Final = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""The datatypes whose elements have one size, in the words of `struct`."""


def divided(raw: bytes, json_length: str | None) -> tuple[bytes, bytes]:
    """Returns the JSON of a body, and the bytes behind it. `json_length` is the header's value, None where it is
    absent. Raises InvalidRequest for a length that the body does not have."""
    if json_length is None:
        return raw, b""
    length = int(json_length[:20]) if json_length.isascii() and json_length.isdecimal() else -1
    if not 0 <= length <= len(raw):
        raise InvalidRequest(
            f"Inference-Header-Content-Length must be the length of the JSON, at most the body's {len(raw)} bytes"
        )
    return raw[:length], raw[length:]


def fields_of(body: InferBody, behind: bytes) -> dict[str, Any]:
    """Returns the generate body that the tensors and the parameters spell. Raises InvalidRequest for a tensor that is
    not what it says, or for a name that comes twice."""
    parameters = body.parameters.model_extra if body.parameters else None
    fields: dict[str, Any] = {"id": body.id, "parameters": parameters}
    for index, tensor in enumerate(body.inputs):
        size = tensor.parameters.binary_data_size if tensor.parameters else None
        if size is None:
            elements = list(_flat(tensor.data or []))
        else:
            elements, behind = _unpacked(tensor, behind[:size], size), behind[size:]
        if tensor.name in fields:
            raise InvalidRequest(f"`inputs[{index}].name` {tensor.name!r} comes twice: send it once", param="inputs")
        fields[tensor.name] = _value(tensor, elements)
    if behind:
        raise InvalidRequest(f"{len(behind)} bytes behind the JSON belong to no tensor: say their binary_data_size")
    return fields


def _value(tensor: InputTensor, elements: list[Element]) -> Element | list[Element]:
    """Returns one element as itself, several as a list. Raises InvalidRequest where they are not as declared."""
    count, kinds = math.prod(tensor.shape), _kinds(tensor.datatype)
    if len(elements) != count:
        raise InvalidRequest(f"The tensor {tensor.name!r} has {len(elements)} elements and a shape of {count}")
    if any(type(element) not in kinds or not _fits(element, tensor.datatype) for element in elements):
        raise InvalidRequest(f"The tensor {tensor.name!r} has an element that is not {tensor.datatype}")
    if tensor.name == TEXT_INPUT and count != 1:
        raise InvalidRequest(f"The tensor {TEXT_INPUT} must have one element: send one request for each prompt")
    return elements[0] if count == 1 else elements


def _kinds(datatype: str) -> tuple[type, ...]:
    if datatype == "BYTES":
        return (str,)
    if datatype == "BOOL":
        return (bool,)
    return (int, float) if datatype.startswith("FP") else (int,)


def _fits(element: Element, datatype: str) -> bool:
    """Returns whether an element is within the datatype's range: a text always, a number by its size."""
    try:
        return datatype == "BYTES" or bool(struct.pack(f"<{CODES[datatype]}", element))
    except (struct.error, OverflowError):
        return False


def _flat(data: list[Any]) -> Iterator[Any]:
    """Yields the elements of nested lists: data may be written flat, or in the tensor's shape."""
    for each in data:
        if isinstance(each, list):
            yield from _flat(each)
        else:
            yield each


def _unpacked(tensor: InputTensor, raw: bytes, size: int) -> list[Element]:
    if tensor.data is not None:
        raise InvalidRequest(f"The tensor {tensor.name!r} has data and binary_data_size: send one of them")
    if len(raw) < size:
        raise InvalidRequest(f"The tensor {tensor.name!r} has {size} bytes behind the JSON, and {len(raw)} came")
    if tensor.datatype == "BYTES":
        return list(_texts(tensor.name, raw))
    one = struct.Struct("<" + CODES[tensor.datatype])
    if size % one.size:
        raise InvalidRequest(f"The tensor {tensor.name!r} has {size} bytes, which is no number of {tensor.datatype}")
    return [value for (value,) in one.iter_unpack(raw)]


def _texts(name: str, raw: bytes) -> Iterator[str]:
    at = 0
    while at < len(raw):
        start = at + LENGTH.size
        at = start + LENGTH.unpack_from(raw, at)[0] if start <= len(raw) else start
        if at > len(raw):
            raise InvalidRequest(f"The tensor {name!r} ends inside an element: say each length in 4 bytes before it")
        try:
            yield raw[start:at].decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"The tensor {name!r} is not UTF-8: encode its text as UTF-8") from None


class TensorSerialiser(TextSerialiser):
    """Writes the answer's text as a tensor of the prompt's shape."""

    def __init__(self, body: InferBody) -> None:
        super().__init__(body.id)
        self._shape = next(tensor.shape for tensor in body.inputs if tensor.name == TEXT_INPUT)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        text = {"name": TEXT_OUTPUT, "datatype": "BYTES", "shape": self._shape, "data": [answer.best[0].text]}
        return {**self._id, **served_by(answer), "outputs": [text]}


def packed(whole: bytes) -> tuple[bytes, int]:
    """Returns a body of TensorSerialiser with the text's bytes behind the JSON, and the JSON's length."""
    body = json.loads(whole)
    [output] = body["outputs"]
    [text] = output.pop("data")
    raw = text.encode()
    behind = LENGTH.pack(len(raw)) + raw
    output["parameters"] = {"binary_data_size": len(behind)}
    head = encode(body)
    return head + behind, len(head)
