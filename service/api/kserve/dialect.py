"""This dialect is the KServe v2 protocol with Triton's generate extension. The native parser makes the requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from service.api.http.encoding import event
from service.api.http.errors import body_of
from service.api.http.paths import ErrorDialect
from service.api.kserve.schemas import TextBody
from service.api.tgi import dialect as native
from service.api.tgi.triton import TritonSerialiser, served_by
from service.errors import DosirakError, UnsupportedField
from service.generation.answer import Answer, Delta
from service.generation.request import GenerationRequest
from service.settings import Settings


def parse(body: TextBody, reference: str, settings: Settings) -> GenerationRequest:
    """Returns the request of one whole answer. Raises UnsupportedField for a stream."""
    if body.stream:
        raise UnsupportedField("`stream` cannot act here: send the request to …/generate_stream", param="stream")
    return native.parse(body.native(reference), settings, stream=False)


def parse_stream(body: TextBody, reference: str, settings: Settings) -> GenerationRequest:
    """Returns the request of a stream. Raises UnsupportedField for what a stream cannot do."""
    return native.parse(body.native(reference), settings, stream=True)


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
